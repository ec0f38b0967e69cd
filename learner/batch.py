"""Whole rollouts side by side: [T, N] arrays of one update, and rows in minibatch order. Pure.

All rollouts of a run have the same T, so they stack along the environments, whatever their N.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dppo_redis.rollout import Rollout
from dppo_redis.spaces import Array, BoolArray, FloatArray
from learner.corrections import Estimates


@dataclass(frozen=True)
class Batch:
    """The rollouts of one update, [T, N] with N summed over them."""

    observations: FloatArray  # [T, N, O]
    actions: Array  # [T, N] or [T, N, A]
    log_probs: FloatArray  # [T, N]
    rewards: FloatArray  # [T, N]
    terminated: BoolArray  # [T, N]
    truncated: BoolArray  # [T, N]
    valid: BoolArray  # [T, N]
    final_observations: FloatArray  # [E, O], of the ended rows of the stacked arrays, in row order
    last_observations: FloatArray  # [N, O]
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

    def side_by_side(name: str) -> Array:
        return np.concatenate([getattr(rollout, name) for rollout in rollouts], axis=1)

    return Batch(
        observations=side_by_side("observations"),
        actions=side_by_side("actions"),
        log_probs=side_by_side("log_probs"),
        rewards=side_by_side("rewards"),
        terminated=side_by_side("terminated"),
        truncated=side_by_side("truncated"),
        valid=side_by_side("valid"),
        final_observations=_final_observations(rollouts),
        last_observations=np.concatenate([rollout.last_observations for rollout in rollouts]),
        discounted_returns=np.concatenate([rollout.discounted_returns for rollout in rollouts]),
        episode_returns=np.concatenate([rollout.episode_returns for rollout in rollouts]),
        staleness=np.repeat(
            np.asarray(staleness or [0] * len(rollouts)), [r.rewards.shape[1] for r in rollouts]
        ),
    )


def _final_observations(rollouts: Sequence[Rollout]) -> FloatArray:
    """Each rollout's final observations are in its own row order; bring them into the batch's."""
    offsets = np.cumsum([0] + [rollout.rewards.shape[1] for rollout in rollouts])
    steps, places = [], []
    for rollout, offset in zip(rollouts, offsets, strict=False):
        t, n = np.nonzero(rollout.ends)
        steps.append(t)
        places.append(n + offset)
    order = np.lexsort((np.concatenate(places), np.concatenate(steps)))
    result: FloatArray = np.concatenate([rollout.final_observations for rollout in rollouts])[order]
    return result


@dataclass(frozen=True)
class Rows:
    """Valid rows of a batch as tensors; every per-row quantity has shape [B]."""

    observations: Tensor  # [B, O]
    actions: Tensor  # [B] or [B, A]
    old_log_probs: Tensor  # [B], of the policy that the ratio is taken against
    weights: Tensor  # [B], importance weights of the surrogate
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    values: Tensor  # [B], of the critic before the update

    def __len__(self) -> int:
        return len(self.observations)

    def take(self, index: Tensor | slice) -> "Rows":
        """The rows at `index`; a slice gives views."""
        return Rows(
            self.observations[index],
            self.actions[index],
            self.old_log_probs[index],
            self.weights[index],
            self.advantages[index],
            self.returns[index],
            self.values[index],
        )


def valid_rows(batch: Batch, estimates: Estimates, values: FloatArray, device: torch.device) -> Rows:
    """Flatten a batch to its valid rows; this is where data moves to the device."""

    def to_device(array: Array) -> Tensor:
        return torch.from_numpy(array[batch.valid]).to(device)

    return Rows(
        observations=to_device(batch.observations),
        actions=to_device(batch.actions),
        old_log_probs=to_device(estimates.old_log_probs),
        weights=to_device(estimates.weights),
        advantages=to_device(estimates.advantages),
        returns=to_device(estimates.returns),
        values=to_device(values),
    )


def minibatches(rows: Rows, size: int, generator: torch.Generator) -> Iterator[Rows]:
    """One pass over all rows in random order; the last minibatch may be short, never empty."""
    order = torch.randperm(len(rows), generator=generator).to(rows.observations.device)
    shuffled = rows.take(order)
    for start in range(0, len(rows), size):
        yield shuffled.take(slice(start, start + size))
