"""Stacks rollouts into the [T, N] arrays of one update, and yields its rows in minibatches. Pure.

Rollouts stack along the environments, and each may have its own N. They have the same T, unless the fleet has
just changed. A shorter rollout is extended to the batch's T with rows that are not valid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dppo_redis.policy.actor_critic import Actions
from dppo_redis.policy.networks import Inputs, Sequences
from dppo_redis.protocol.rollout import LAYOUTS, Rollout


@dataclass(frozen=True)
class Batch(Rollout):
    """The rollouts of one update, copied side by side into one wide rollout.

    Its episodes are in order of arrival: first those of the first rollout, then those of the second ...
    """

    staleness: npt.NDArray[np.int64]  # [N], updates, of the rollout that each column came in


def stack(rollouts: Sequence[Rollout], staleness: Sequence[int] | None = None) -> Batch:
    """Copy rollouts, in the given order, into one batch; `staleness` None means 0 for all."""
    widths = [rollout.rewards.shape[1] for rollout in rollouts]
    steps = max(len(rollout.rewards) for rollout in rollouts)
    rollouts = [_extended(rollout, steps) for rollout in rollouts]
    arrays = {
        name: np.concatenate([getattr(rollout, name) for rollout in rollouts], axis=len(layout.axes) - 1)
        for name, layout in LAYOUTS.items()
    }
    arrays["final_observations"] = arrays["final_observations"][_row_order(rollouts)]
    return Batch(**arrays, staleness=np.repeat(np.asarray(staleness or [0] * len(rollouts)), widths))


def _extended(rollout: Rollout, steps: int) -> Rollout:
    """The rollout extended to `steps` rows; the added rows are not valid.

    Its last row is marked as truncated, with the observation after it as the final one: a rollout's end has
    this effect on a return.
    """
    own = len(rollout.rewards)
    if own == steps:
        return rollout
    missing = steps - own
    longer = {
        name: np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        for name, array in ((n, getattr(rollout, n)) for n, of in LAYOUTS.items() if of.axes == "TN")
    }
    ends = rollout.ends
    before = int(np.count_nonzero(ends[:-1]))
    after_last = rollout.last_observations.copy()
    after_last[ends[-1]] = rollout.final_observations[before:]
    longer["truncated"][own - 1] |= ~ends[-1]
    return replace(
        rollout,
        **longer,
        final_observations=np.concatenate([rollout.final_observations[:before], after_last]),
    )


def _row_order(rollouts: Sequence[Rollout]) -> npt.NDArray[np.int64]:
    """The indices that bring the ended rows of all rollouts from their rollouts' order into the batch's."""
    offsets = np.cumsum([0] + [rollout.rewards.shape[1] for rollout in rollouts])
    steps, places = [], []
    for rollout, offset in zip(rollouts, offsets, strict=False):
        t, n = np.nonzero(rollout.ends)
        steps.append(t)
        places.append(n + offset)
    return np.lexsort((np.concatenate(places), np.concatenate(steps)))


@dataclass(frozen=True)
class Rows:
    """Rows of a batch as tensors; every per-row quantity has shape [B].

    For a network with a memory they are whole columns, (t, n) in row t N + n, dummy rows included.
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
        """The rows at `index`, a tensor [b] of row numbers or a slice; a slice gives views."""
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
    if rows.inputs.images:  # a copy of all images in this order would be as large as the batch
        for part in torch.split(order, size):
            yield rows.take(part)
        return
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
