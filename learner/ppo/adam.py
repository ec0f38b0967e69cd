"""An Adam optimiser that equals `torch.optim.Adam` bit for bit and reads and writes its checkpoints.

Creating `torch.optim.Adam` imports torch's compiler and a computer algebra system, which we do not use. This
costs 0.8 s of computing time and 100 MB before the first update. The function `torch.optim.adam.adam`, which
this module calls, imports neither.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

_STATE = ("step", "exp_avg", "exp_avg_sq")  # torch's names for t, m and v


class Adam:
    """Adam (arXiv:1412.6980) with the moments and settings of `parameters`, which are all on one device.

    `state` and `param_groups` are named as in torch. A parameter has a state from its first step on.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, eps: float) -> None:
        self._parameters = list(parameters)
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        self.param_groups: list[dict[str, Any]] = [{"lr": lr, "betas": (0.9, 0.999), "eps": eps}]
        self.loaded: Callable[[], None] = lambda: None  # called after a state was loaded

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Make one step along the parameters' gradients."""
        used = [parameter for parameter in self._parameters if parameter.grad is not None]
        states = [self._state_of(parameter) for parameter in used]
        (group,) = self.param_groups
        steps, first, second = ([state[name] for state in states] for name in _STATE)
        adam(
            list[Tensor](used),
            [parameter.grad for parameter in used if parameter.grad is not None],
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state.get(parameter)
        if state is None:
            count = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments = (torch.zeros_like(parameter.data), torch.zeros_like(parameter.data))
            state = self.state[parameter] = dict(zip(_STATE, (count, *moments), strict=True))
        return state

    def state_dict(self) -> dict[str, Any]:
        """The state as torch's Adam would return it; torch's `load_state_dict` reads it."""
        (group,) = self.param_groups
        places = {parameter: place for place, parameter in enumerate(self._parameters)}
        unused = {
            "weight_decay": 0,
            "amsgrad": False,
            "maximize": False,
            "foreach": None,
            "capturable": False,
        }
        return {
            "state": {places[parameter]: dict(state) for parameter, state in self.state.items()},
            "param_groups": [
                {
                    **group,
                    **unused,
                    "differentiable": False,
                    "fused": True,
                    "decoupled_weight_decay": False,
                    "params": list(places.values()),
                }
            ],
        }

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Copy a state that `state_dict`, or that of torch's Adam, returned.

        Raises:
            ValueError: the state belongs to other parameters.
        """
        (group,) = values["param_groups"]
        if len(group["params"]) != len(self._parameters):
            raise ValueError(f"{len(group['params'])} parameters, not {len(self._parameters)}.")
        self.state = {}
        for place, stored in values["state"].items():
            parameter = self._parameters[place]
            if stored["exp_avg"].shape != parameter.shape:
                raise ValueError(
                    f"a parameter has the shape {tuple(parameter.shape)}, not that of its moments."
                )
            self._state_of(parameter)
            for name, tensor in self.state[parameter].items():
                tensor.copy_(stored[name])
        self.param_groups = [{name: group[name] for name in ("lr", "betas", "eps")}]
        self.loaded()
