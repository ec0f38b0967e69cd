"""Whole rollouts side by side: [T, N] arrays of one update, and rows in minibatch order. Pure.

All rollouts of a run have the same T, so they stack along the environments, whatever their N.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dppo_redis.networks import Inputs, Sequences
from dppo_redis.policy import Actions
from dppo_redis.rollout import Rollout
from dppo_redis.spaces import Array, BoolArray, FloatArray


@dataclass(frozen=True)
class Batch:
    """The rollouts of one update, [T, N] with N summed over them."""

    observations: Array  # [T, N, *row], single frames
    actions: Array  # [T, N, *row]
    log_probs: FloatArray  # [T, N]
    rewards: FloatArray  # [T, N]
    terminated: BoolArray  # [T, N]
    truncated: BoolArray  # [T, N]
    valid: BoolArray  # [T, N]
    final_observations: Array  # [E, *row], of the ended rows of the stacked arrays, in row order
    last_observations: Array  # [N, *row]
    frames_before: Array  # [N, k - 1, *row]
    memory: FloatArray  # [N, S]
    discounted_returns: npt.NDArray[np.float64]  # [N], running ones before the first step
    episode_returns: FloatArray  # [E], in order of arrival
    staleness: npt.NDArray[np.int64]  # [N], updates, of the rollout that each column came in

    @property
    def steps(self) -> int:
        """Valid rows."""
        return int(np.count_nonzero(self.valid))

    @property
    def ends(self) -> BoolArray:
        """[T, N], rows after which an episode ended, for either reason."""
        return self.terminated | self.truncated


def stack(rollouts: Sequence[Rollout], staleness: Sequence[int] | None = None) -> Batch:
    """Copy rollouts, in the order given, into one batch; all of staleness 0 where none is given."""

    def side_by_side(name: str, axis: int = 1) -> Array:
        return np.concatenate([getattr(rollout, name) for rollout in rollouts], axis=axis)

    return Batch(
        observations=side_by_side("observations"),
        actions=side_by_side("actions"),
        log_probs=side_by_side("log_probs"),
        rewards=side_by_side("rewards"),
        terminated=side_by_side("terminated"),
        truncated=side_by_side("truncated"),
        valid=side_by_side("valid"),
        final_observations=_final_observations(rollouts),
        last_observations=side_by_side("last_observations", axis=0),
        frames_before=side_by_side("frames_before", axis=0),
        memory=side_by_side("memory", axis=0),
        discounted_returns=side_by_side("discounted_returns", axis=0),
        episode_returns=side_by_side("episode_returns", axis=0),
        staleness=np.repeat(
            np.asarray(staleness or [0] * len(rollouts)), [r.rewards.shape[1] for r in rollouts]
        ),
    )


def _final_observations(rollouts: Sequence[Rollout]) -> Array:
    """Each rollout's final observations are in its own row order; bring them into the batch's."""
    offsets = np.cumsum([0] + [rollout.rewards.shape[1] for rollout in rollouts])
    steps, places = [], []
    for rollout, offset in zip(rollouts, offsets, strict=False):
        t, n = np.nonzero(rollout.ends)
        steps.append(t)
        places.append(n + offset)
    order = np.lexsort((np.concatenate(places), np.concatenate(steps)))
    result: Array = np.concatenate([rollout.final_observations for rollout in rollouts])[order]
    return result


@dataclass(frozen=True)
class Rows:
    """Rows of a batch as tensors; every per-row quantity has shape [B].

    Those of a network with a memory are whole columns, (t, n) in row t N + n, dummy rows included.
    """

    inputs: Inputs
    actions: Actions
    old_log_probs: Tensor  # [B], of the policy that the ratio is taken against
    weights: Tensor  # [B], importance weights of the surrogate
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    values: Tensor  # [B], of the critic before the update
    valid: Tensor  # [B] bool

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Tensor | slice) -> "Rows":
        """The rows at `index`; a slice gives views."""
        return Rows(
            self.inputs.take(index),
            self.actions.take(index),
            self.old_log_probs[index],
            self.weights[index],
            self.advantages[index],
            self.returns[index],
            self.values[index],
            self.valid[index],
        )


def minibatches(rows: Rows, size: int, generator: torch.Generator) -> Iterator[Rows]:
    """One pass over all rows in random order; the last minibatch may be short, never empty."""
    sequences = rows.inputs.sequences
    if sequences is not None:
        yield from _columns(rows, sequences, size, generator)
        return
    order = torch.randperm(len(rows), generator=generator).to(rows.values.device)
    shuffled = rows.take(order)
    for start in range(0, len(rows), size):
        yield shuffled.take(slice(start, start + size))


def _columns(rows: Rows, sequences: Sequences, size: int, generator: torch.Generator) -> Iterator[Rows]:
    """Minibatches of whole columns, so that the memory is unrolled as it was when acting."""
    steps, count = sequences.starts.shape
    order = torch.randperm(count, generator=generator).to(rows.values.device)
    times = torch.arange(steps, device=order.device).unsqueeze(1) * count
    for columns in torch.split(order, max(1, size // steps)):
        some = rows.take((times + columns).flatten())
        here = Sequences(sequences.starts[:, columns], sequences.state[columns])
        yield replace(some, inputs=some.inputs.with_sequences(here))
