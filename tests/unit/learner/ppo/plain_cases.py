"""Random minibatches of plain networks, and their gradient by autograd: what `gradient.py` has to equal."""

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dppo_redis.policy.actor_critic import Actions, ActorCritic
from dppo_redis.policy.networks import Inputs
from dppo_redis.spaces.actions import ActionSpec, BoxSpec, CompositeSpec, DiscreteSpec, MultiDiscreteSpec
from learner.ppo.loss import Loss, normalise, ppo_loss
from learner.ppo.plain.flat_parameters import FlatParameters
from learner.ppo.plain.gradient import PlainGradient, Terms
from learner.ppo.plain.networks import Floats, Seen, Targets
from learner.ppo.plain.steps import plain_networks
from tests.factories import make_spec

_BOX = BoxSpec((2,), (-1.0, -1.0), (1.0, 1.0), "float32")
_SIZES = MultiDiscreteSpec((2, 3, 3), (0, 0, 0), (3,), "int64")
ACTIONS = {
    "Discrete": ActionSpec(DiscreteSpec(4, start=0)),
    "MultiDiscrete": ActionSpec(_SIZES),
    "MultiBinary": ActionSpec(MultiDiscreteSpec((2,) * 5, (0,) * 5, (5,), "int8")),
    "Box": ActionSpec(_BOX),
    "Dict": ActionSpec(CompositeSpec(("a", "b", "c"), (DiscreteSpec(2, start=1), _BOX, _SIZES))),
    "Tuple": ActionSpec(CompositeSpec(None, (_BOX, DiscreteSpec(3, start=0), _BOX))),
}


@dataclass(frozen=True)
class Shape:
    """What a case is about; the numbers come from `seed`."""

    action: str = "Discrete"
    activation: Literal["tanh", "relu"] = "tanh"
    hidden: tuple[int, ...] = (8, 8)
    rows: int = 32
    masked: bool = False
    double: bool = False
    seed: int = 0


class Case:
    """A network and a minibatch, as tensors and as arrays."""

    def __init__(self, shape: Shape) -> None:
        action = ACTIONS[shape.action]
        masked = shape.masked and action.choices > 0
        dtype: npt.DTypeLike = np.float64 if shape.double else np.float32
        rng, count = np.random.default_rng(shape.seed), shape.rows
        spec = make_spec(action=action, observation_size=5, hidden=shape.hidden, activation=shape.activation)
        self.model = ActorCritic(spec).to(torch.float64 if shape.double else torch.float32)
        for parameter in self.model.parameters():
            scale = 0.5 if parameter.dim() == 1 else parameter.shape[1] ** -0.5
            parameter.data = torch.tensor(
                scale * rng.standard_normal(tuple(parameter.shape)), dtype=parameter.dtype
            )
        networks = plain_networks(self.model, spec)
        assert networks is not None
        self.names = [name for name, _ in networks.layout()]
        self.flat = FlatParameters(self.model, networks.layout())
        self.by_hand = PlainGradient(networks, self.flat.values)

        def numbers(*lead: int) -> Any:
            return rng.standard_normal((*lead, count)).astype(dtype)

        sizes = np.asarray(action.categories, np.int64)[:, None]
        categories = rng.integers(0, sizes, (len(sizes), count))
        chosen = categories + np.asarray(action.offsets)[:, None]
        allowed = rng.random((action.choices, count)) < 0.5
        np.put_along_axis(allowed, chosen, values=True, axis=0)
        self.seen = Seen(
            np.ascontiguousarray(numbers(5).T),
            allowed if masked else None,
            chosen,
            numbers(action.dimensions),
        )
        self._inputs = Inputs(
            torch.tensor(self.seen.features), (), torch.tensor(allowed.T) if masked else None
        )
        self._actions = Actions(torch.tensor(categories.T), torch.tensor(self.seen.values.T))
        log_probs, values = self.evaluated()
        self._advantages = numbers()
        self.targets = Targets(
            old_log_probs=log_probs + 0.3 * numbers(),
            weights=np.exp(0.5 * numbers()),
            advantages=normalise(torch.tensor(self._advantages)).numpy(),
            returns=numbers(),
            old_values=values + 0.3 * numbers(),
        )

    def forbid(self, mask: npt.NDArray[np.bool_]) -> None:
        """Let the network see another mask [choices, B]."""
        self._inputs = replace(self._inputs, mask=torch.tensor(mask.T))

    def evaluated(self) -> tuple[Floats, Floats]:
        """Log-probabilities and values by torch."""
        with torch.no_grad():
            now = self.model.evaluate(self._inputs, self._actions)
        return now.log_probs.numpy(), now.values.numpy()

    def rounding_error(self, terms: Terms) -> float:
        """How far autograd's own gradient in float32 is from the same computed in float64."""
        exact = copy.deepcopy(self)
        exact.model.double()
        exact.flat.parameters = [dict(exact.model.named_parameters())[name] for name in self.names]
        exact._inputs = replace(self._inputs, vector=self._inputs.vector.double())
        exact._actions = Actions(self._actions.categories, self._actions.values.double())
        exact.targets = Targets(*(column.astype(np.float64) for column in self.targets))
        exact._advantages = self._advantages.astype(np.float64)
        return distance(self.by_autograd(terms)[0], exact.by_autograd(terms)[0])

    def by_autograd(self, terms: Terms, targets: Targets | None = None) -> tuple[Floats, Loss]:
        """Its gradient in the order of the flat array, and its loss."""
        now, known = self.model.evaluate(self._inputs, self._actions), targets or self.targets
        loss = ppo_loss(
            log_probs=now.log_probs,
            old_log_probs=torch.tensor(known.old_log_probs),
            weights=torch.tensor(known.weights),
            advantages=torch.tensor(self._advantages),
            values=now.values,
            old_values=torch.tensor(known.old_values),
            returns=torch.tensor(known.returns),
            entropy=now.entropy,
            clip_epsilon=terms.clip_epsilon,
            value_coef=terms.value_coef,
            entropy_coef=terms.entropy_coef,
            dual_clip=terms.dual_clip,
            value_clip=terms.value_clip,
        )
        parts = torch.autograd.grad(loss.total, self.flat.parameters)
        return torch.cat([part.flatten() for part in parts]).numpy(), loss


def distance(mine: Floats, theirs: Floats) -> float:
    """Norm of the difference, by the norm of `theirs`."""
    return float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
