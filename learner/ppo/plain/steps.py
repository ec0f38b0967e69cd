"""Makes gradient steps without autograd for two plain networks over vectors on the CPU.

It passes the minibatches of `batch.minibatches`, the same rows in the same order, to `gradient.py`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.networks import InputSizes
from dppo_redis.protocol.config import PpoConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.observations import Array
from learner.ppo.adam import Adam
from learner.ppo.batch import Rows
from learner.ppo.plain.flat_parameters import FlatAdam, FlatParameters
from learner.ppo.plain.gradient import PlainGradient, Terms
from learner.ppo.plain.networks import Floats, PlainNetworks, Seen, Targets, aligned
from learner.ppo.steps import AutogradSteps, Schedule, Steps, Tally

WIDEST_BY_HAND = (
    512  # units of a layer: beyond it products take all the time, and torch's are as fast or faster
)


def make_steps(
    model: ActorCritic, optimizer: Adam, spec: Spec, ppo: PpoConfig, device: torch.device
) -> Steps:
    """Steps without autograd if these are possible and faster, else steps with autograd."""
    networks = plain_networks(model, spec)
    if networks is None or device.type != "cpu" or max(networks.hidden) > WIDEST_BY_HAND:
        return AutogradSteps(model, optimizer, ppo)
    return PlainSteps(model, networks, optimizer, ppo)


def plain_networks(model: ActorCritic, spec: Spec) -> PlainNetworks | None:
    """The sizes of the two networks; None if they are not plain networks over vectors."""
    if model.custom is not None or model.trunk is not None or model.memory is not None:
        return None
    return PlainNetworks(
        features=InputSizes.of(spec.observation, spec.frame_stack).features,
        hidden=spec.network.hidden,
        activation=spec.network.activation,
        categories=spec.action.categories,
        dimensions=spec.action.dimensions,
    )


class PlainSteps:
    """Parameters, their gradient and Adam's moments as flat arrays."""

    def __init__(self, model: ActorCritic, networks: PlainNetworks, optimizer: Adam, ppo: PpoConfig) -> None:
        self._ppo = ppo
        self._flat = FlatParameters(model, networks.layout())
        self._adam = FlatAdam(self._flat, optimizer)
        self._gradient = PlainGradient(networks, self._flat.values)
        self._firsts = np.cumsum((0, *networks.categories))[:-1, None]  # [K, 1], first logit of each category

    def passes(self, rows: Rows, schedule: Schedule, generator: torch.Generator) -> Iterator[Tally]:
        """Pass after pass over `rows`, each when it is asked for."""
        ppo = self._ppo
        terms = Terms(
            clip_epsilon=schedule.clip_epsilon,
            value_coef=ppo.value_coef,
            entropy_coef=schedule.entropy_coef,
            dual_clip=ppo.dual_clip,
            value_clip=ppo.value_clip,
        )
        self._flat.adopt()
        seen, targets = self._columns(rows)
        shuffled = _Shuffled(seen, targets)
        while True:
            shuffled.shuffle(torch.randperm(len(rows), generator=generator).numpy(), ppo.minibatch_size)
            yield self._one_pass(shuffled, terms)

    def _one_pass(self, rows: "_Shuffled", terms: Terms) -> Tally:
        sums, steps, skipped = np.zeros(5), 0, 0
        for seen, targets in rows.minibatches(self._ppo.minibatch_size):
            watched = self._gradient.step(seen, targets, terms)
            if self._adam.step(self._gradient.gradient, self._ppo.max_grad_norm):
                sums += watched
                steps += 1
            else:
                skipped += 1
        return Tally(torch.from_numpy(sums), steps, skipped)

    def _columns(self, rows: Rows) -> tuple[Seen, Floats]:
        """All rows in the form that the gradient reads, and their targets [5, B]."""
        mask, actions = rows.inputs.mask, rows.actions
        seen = Seen(
            features=rows.inputs.vector.numpy(),
            mask=None if mask is None else np.ascontiguousarray(mask.numpy().T),
            chosen=np.ascontiguousarray(actions.categories.numpy().T + self._firsts),
            values=np.ascontiguousarray(actions.values.numpy().T),
        )
        targets = torch.stack(
            (rows.old_log_probs, rows.weights, rows.advantages, rows.returns, rows.values)
        ).numpy()
        return seen, targets


class _Shuffled:
    """All rows of an update in the order of a pass."""

    def __init__(self, seen: Seen, targets: Floats) -> None:
        self._seen, self._targets = seen, targets
        self._own_seen = Seen(
            features=_like(seen.features),
            mask=None if seen.mask is None else _like(seen.mask),
            chosen=_like(seen.chosen),
            values=_like(seen.values),
        )
        self._own_targets: Floats = _like(targets)

    def shuffle(self, order: Array, size: int) -> None:
        """Copy all rows in this order, and normalise advantages over minibatches of `size`."""
        for axis, source, own in zip((0, 1, 1, 1), self._seen, self._own_seen, strict=True):
            if source is not None:
                source.take(order, axis=axis, out=own, mode="clip")
        self._targets.take(order, axis=1, out=self._own_targets, mode="clip")
        advantages = self._own_targets[2]
        whole = len(order) // size * size
        for part in (advantages[:whole].reshape(-1, size), advantages[None, whole:]):
            if part.size:
                part[:] = _normalised(part)

    def minibatches(self, size: int) -> Iterator[tuple[Seen, Targets]]:
        """Views of up to `size` rows."""
        features, mask, chosen, values = self._own_seen
        for start in range(0, len(features), size):
            part = slice(start, start + size)
            yield (
                Seen(
                    features[part], None if mask is None else mask[:, part], chosen[:, part], values[:, part]
                ),
                Targets(*self._own_targets[:, part]),
            )


def _like(array: Array) -> Array:
    return aligned(array.shape, array.dtype)


def _normalised(advantages: Floats) -> Floats:
    """The advantages of M minibatches [M, B], each normalised as by `loss.normalise`."""
    exact = advantages.astype(np.float64)
    exact -= exact.mean(axis=1, keepdims=True)
    exact /= np.sqrt(np.square(exact).mean(axis=1, keepdims=True)) + 1e-8
    return exact
