"""Keeps all parameters of a network in one flat array, and runs Adam on it.

torch's tensors are views of this array and keep their names, shapes and formats. So code that uses the
network or the optimiser through torch (checkpoints, exports, warm starts, publications) needs no change.
Loading copies into the array.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.ppo.adam import Adam
from learner.ppo.plain.networks import Floats, aligned

_STATE = ("step", "exp_avg", "exp_avg_sq")  # names that torch's Adam gives to t, m and v

_BLOCK = 16_384  # numbers that Adam takes at once, so that they stay in the processor's cache


class FlatParameters:
    """The parameters of `module` that `layout` names, one after another in one array."""

    def __init__(self, module: nn.Module, layout: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        known = dict(module.named_parameters())
        assert {name: tuple(parameter.shape) for name, parameter in known.items()} == dict(layout)
        self.parameters = [known[name] for name, _ in layout]
        dtype = torch.empty((), dtype=self.parameters[0].dtype).numpy().dtype
        self.values: Floats = aligned((sum(parameter.numel() for parameter in self.parameters),), dtype)
        self._views = self.views_of(self.values)
        self.adopt()

    def views_of(self, flat: Floats) -> list[Tensor]:
        """An array [P], as long as all parameters, as tensors of their shapes; they share its memory."""
        ends = np.cumsum([parameter.numel() for parameter in self.parameters])
        parts = np.split(flat, ends[:-1])
        return [
            torch.from_numpy(part.reshape(parameter.shape))
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]

    def adopt(self) -> None:
        """Copy parameters into the array again if other code gave the network other tensors."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view


class FlatAdam:
    """Adam (arXiv:1412.6980, algorithm 1) on flat parameters, in the order of operations of torch's.

        m = m + (1 - b1)(g - m),   v = b2 v + (1 - b2) g^2
        theta = theta - lr / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    Before that the gradient is clipped to a norm. `optimizer` keeps the settings and, as views, the moments.
    Its `state_dict` is that of torch's own Adam after the same steps.
    """

    def __init__(self, flat: FlatParameters, optimizer: Adam) -> None:
        self._flat = flat
        self._optimizer = optimizer
        self._moments: Floats = aligned((2, flat.values.size), flat.values.dtype)  # m, v
        self._spare: Floats = aligned((min(_BLOCK, flat.values.size),), flat.values.dtype)
        self._steps = np.zeros(len(flat.parameters), np.float32)  # t; torch counts for each parameter
        self._views = list(
            zip(
                [torch.from_numpy(self._steps[i : i + 1]).squeeze(0) for i in range(len(self._steps))],
                flat.views_of(self._moments[0]),
                flat.views_of(self._moments[1]),
                strict=True,
            )
        )
        self._take_over()
        optimizer.loaded = self._take_over

    def _take_over(self) -> None:
        """Continue from the optimiser's state; begin with zeros if it has none."""
        self._moments[:], self._steps[:] = 0, 0
        state = self._optimizer.state
        for parameter, views in zip(self._flat.parameters, self._views, strict=True):
            if parameter in state:
                for name, view in zip(_STATE, views, strict=True):
                    view.copy_(state[parameter][name])
        if state:
            self._attach()

    def _attach(self) -> None:
        """Replace the optimiser's state by views of this object's arrays."""
        for parameter, views in zip(self._flat.parameters, self._views, strict=True):
            self._optimizer.state[parameter] = dict(zip(_STATE, views, strict=True))

    def step(self, gradient: Floats, max_norm: float) -> bool:
        """Make one step along `gradient`, which is overwritten; False without a step if it is not finite."""
        norm = _norm(gradient)
        if not math.isfinite(norm):
            return False
        if not self._optimizer.state:
            self._attach()
        group: dict[str, Any] = self._optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        self._steps += 1
        t, clip = float(self._steps[0]), min(1.0, max_norm / (norm + 1e-6))
        root, rate = math.sqrt(1 - beta2**t), group["lr"] / (1 - beta1**t)
        for start in range(0, len(gradient), _BLOCK):
            part = slice(start, start + _BLOCK)
            g, m, v, theta = (
                gradient[part],
                self._moments[0, part],
                self._moments[1, part],
                self._flat.values[part],
            )
            spare = self._spare[: len(g)]
            if clip < 1:
                g *= clip
            np.subtract(g, m, out=spare)
            spare *= 1 - beta1
            m += spare
            np.multiply(g, g, out=g)
            g *= 1 - beta2
            v *= beta2
            v += g
            np.sqrt(v, out=spare)
            spare /= root
            spare += group["eps"]
            np.divide(m, spare, out=spare)
            spare *= rate
            theta -= spare
        return True


def _norm(gradient: Floats) -> float:
    """The length of a gradient; infinite if its squares exceed the dtype, as in torch."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(float(np.dot(gradient, gradient)))
