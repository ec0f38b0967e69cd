"""Running mean and variance, merged from batches in float64, and what is done with them. Pure.

The learner owns the statistics and merges them from accepted rollouts; actors and evaluation get a
frozen copy inside the weights. Merging k parts equals one pass over all data.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dppo_redis.spaces.observations import Array, FloatArray

Moments64 = npt.NDArray[np.float64]
CLIP = 10.0  # normalised observations are held within +- this many standard deviations
_EPSILON = 1e-8


@dataclass(frozen=True)
class RunningMoments:
    """Count, mean and sum of squared deviations of all rows seen; arrays are [O]."""

    count: int
    mean: Moments64
    squares: Moments64  # sum over rows of (x - mean)^2

    @staticmethod
    def empty(size: int) -> "RunningMoments":
        """Before the first row: mean 0, and variance 1 by convention."""
        return RunningMoments(0, np.zeros(size), np.zeros(size))

    @staticmethod
    def from_scale(count: int, mean: FloatArray, inverse_std: FloatArray) -> "RunningMoments":
        """What `count` rows would have left behind to give this mean and this 1 / standard deviation."""
        variance = np.maximum(np.square(1.0 / inverse_std.astype(np.float64)) - _EPSILON, 0.0)
        return RunningMoments(count, mean.astype(np.float64), variance * count)

    def merge(self, rows: Array) -> "RunningMoments":
        """The moments after seeing `rows` [B, O] as well.

        Chan, Golub and LeVeque (1979): with d = mean_b - mean_a and n = n_a + n_b,
            mean = mean_a + d n_b / n,  squares = squares_a + squares_b + d^2 n_a n_b / n.
        """
        if len(rows) == 0:
            return self
        exact = rows.astype(np.float64)
        mean = exact.mean(axis=0)
        squares = np.square(exact - mean).sum(axis=0)
        count = self.count + len(rows)
        delta = mean - self.mean
        return RunningMoments(
            count,
            self.mean + delta * (len(rows) / count),
            self.squares + squares + np.square(delta) * (self.count * len(rows) / count),
        )

    @property
    def inverse_std(self) -> Moments64:
        """1 / standard deviation; 1 before the first row, bounded where a value never varies."""
        if self.count == 0:
            return np.ones_like(self.mean)
        return 1.0 / np.sqrt(self.squares / self.count + _EPSILON)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "RunningMoments":
        """Inverse of `to_dict`."""
        return RunningMoments(values["count"], np.array(values["mean"]), np.array(values["squares"]))


def normalise(observations: FloatArray, mean: FloatArray, inverse_std: FloatArray) -> FloatArray:
    """Centred, scaled and clipped observations [..., O]; actor and learner use this one function."""
    scaled = (observations - mean) * inverse_std
    return np.clip(scaled, -CLIP, CLIP, out=scaled)


def discounted_returns(
    start: Moments64,
    rewards: FloatArray,
    ends: npt.NDArray[np.bool_],
    valid: npt.NDArray[np.bool_],
    gamma: float,
) -> tuple[Moments64, Moments64]:
    """Each environment's running discounted return after every step [T, N], and after the last one [N].

        R_t = gamma R_{t-1} + r_t, and 0 again after the step at which an episode ended.

    `start` [N] is the value before the first step; rows that are not valid leave it as it is.
    """
    running = start.copy()
    returns = np.empty(rewards.shape)
    for t in range(len(rewards)):
        running = np.where(valid[t], gamma * running + rewards[t], running)
        returns[t] = running
        running = np.where(ends[t], 0.0, running)
    return returns, running
