"""Returns and lengths of the running episodes, from one rollout to the next. Pure numpy."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dppo_redis.protocol.rollout import LAYOUTS, Rollout
from dppo_redis.spaces.normaliser import discounted_returns
from dppo_redis.spaces.observations import Array, BoolArray, FloatArray


class RolloutTotals(NamedTuple):
    """What a rollout reports of its episodes."""

    episode_returns: FloatArray  # [E], of the episodes that ended, in row order
    episode_lengths: npt.NDArray[np.int32]  # [E]
    discounted_returns: npt.NDArray[np.float64]  # [N], running ones before the first step


class RunningEpisodes:
    """The sums of N running episodes; `discount`: None where the run does not normalise returns."""

    def __init__(self, count: int, discount: float | None) -> None:
        self._discount = discount
        self._returns = np.zeros(count)  # float64
        self._discounted = np.zeros(count)  # the same, discounted, where the spec asks for it
        self._lengths = np.zeros(count, dtype=np.int64)

    def add(self, rows: Rollout) -> RolloutTotals:
        """Add the rows of the next rollout [T, N], in the order in which they were sampled."""
        discounted = self._discounted
        if self._discount is not None:
            ends = rows.terminated | rows.truncated
            _, self._discounted = discounted_returns(
                discounted, rows.rewards, ends, rows.valid, self._discount
            )
            # A reward that is not finite spoils only its own rollout, as for a running return.
            self._discounted = np.nan_to_num(self._discounted, nan=0, posinf=0, neginf=0)
        return RolloutTotals(*self._episodes(rows), discounted)

    def _episodes(self, rows: Rollout) -> tuple[FloatArray, npt.NDArray[np.int32]]:
        """Returns and lengths [E] of the ended episodes, in row order; keeps those of the running ones."""
        returns = self._returns + np.cumsum(rows.rewards, axis=0, dtype=np.float64)
        lengths = self._lengths + np.cumsum(rows.valid, axis=0)
        ended = rows.terminated | rows.truncated
        places = np.nonzero(ended)[1]
        by_place = np.argsort(places.astype(np.uint16), kind="stable")  # small numbers: in linear time
        same = np.diff(places[by_place], prepend=-1) == 0  # not the first end of its environment
        episode_returns = _since_previous(returns[ended], by_place, same)
        episode_lengths = _since_previous(lengths[ended], by_place, same)
        last_end = np.zeros_like(self._returns), np.zeros_like(self._lengths)
        last_end[0][places[by_place]] = returns[ended][by_place]  # the latest end wins
        last_end[1][places[by_place]] = lengths[ended][by_place]
        with np.errstate(invalid="ignore"):
            # An infinite reward spoils only its own episode.
            self._returns = np.nan_to_num(returns[-1] - last_end[0], nan=0, posinf=0, neginf=0)
        self._lengths = lengths[-1] - last_end[1]
        return episode_returns.astype(np.float32), episode_lengths.astype(np.int32)


def first_steps(buffers: Rollout, steps: int) -> Rollout:
    """The part of the buffers that was written."""
    if steps == len(buffers.rewards):
        return buffers
    parts = {n: getattr(buffers, n)[:steps] for n, layout in LAYOUTS.items() if layout.axes == "TN"}
    return replace(buffers, **parts)


def _since_previous(totals: Array, by_place: Array, same: BoolArray) -> Array:
    """Each total minus the total at the previous end of the same environment, in row order."""
    ordered = totals[by_place]
    with np.errstate(invalid="ignore"):  # infinity minus infinity: the rollout will be refused
        ordered[1:] -= np.where(same[1:], totals[by_place][:-1], 0)
    result = np.empty_like(ordered)
    result[by_place] = ordered
    return result
