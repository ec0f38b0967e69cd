"""Keeps running mean and variance in float64, merges batches into them, and normalises with them. Pure.

The learner owns the statistics and merges accepted rollouts into them. Actors and evaluation get a frozen
copy inside the weights. Merging k parts equals one pass over all data if there is no outlier.

One outlier can change a mean and a variance without bound. After a number of 1e10 in 100,000 rows, the
network would see all other numbers as equal for ever. So outliers are limited to CLIP standard deviations of
the statistics so far before they are merged (Winsorised, as in Huber, "Robust Estimation of a Location
Parameter", 1964). The network, too, sees them clipped there. If more than one row of CLIP^2 = 100 lies so far
out, the statistics still move, by a factor with each batch, until these rows are no outliers. Rarer values
are clipped for the network by their own spread, too. Unlike in Huber's method, only values far above CLIP
standard deviations are limited to it, so that ordinary heavy tails do not change.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dppo_redis.spaces.observations import Array, FloatArray

Moments64 = npt.NDArray[np.float64]
CLIP = 10.0  # standard deviations; normalised observations are limited to [-CLIP, CLIP]
_EPSILON = 1e-8
OUTLIER = 100.0  # standard deviations; the recipes in ops/runs stay below
_OUTLIER_IN_UNITS = 1e4  # for a feature that has not varied yet, so that its spread is unknown
_KNOWN_ROWS = 2048  # with fewer, which may be neighbours in time, the limit is wider
_USUAL_SHARE = 0.99  # of a first batch's rows; their range is the usual one
_USUAL_IN_STDS = 2.576  # 99 % of a normal distribution are within this many standard deviations
_LONGEST_HORIZON = 1000.0  # steps


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
        """The moments of `count` rows with this mean [O] and this 1 / standard deviation [O]."""
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
        """1 / standard deviation [O]; 1 before the first row, bounded if a value never varies."""
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


@dataclass(frozen=True)
class OutlierBounds:
    """The centre of values, and the distance beyond which a value is an outlier; arrays are [O]."""

    centre: Moments64
    limit: Moments64  # values at a larger distance from the centre are outliers
    held_at: Moments64  # distance at which an outlier counts

    @staticmethod
    def known(centre: Moments64, std: Moments64, count: int) -> "OutlierBounds":
        """The bounds for a standard deviation that was computed from `count` rows."""
        varies = np.square(std) > _EPSILON
        unit = np.maximum(1.0, np.abs(centre))
        far = OUTLIER * max(1.0, _KNOWN_ROWS / count)
        limit = np.where(varies, far * std, _OUTLIER_IN_UNITS * unit)
        return OutlierBounds(centre, limit, CLIP * np.where(varies, std, unit))

    def hold(self, rows: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Rows [B, O] with limited outliers, and a flag for each row that had one, [B]."""
        low, high = self.centre - self.limit, self.centre + self.limit
        if not len(rows) or ((rows.min(axis=0) >= low) & (rows.max(axis=0) <= high)).all():
            return rows, np.zeros(len(rows), np.bool_)
        outside = (rows < low) | (rows > high)
        held = np.clip(rows, self.centre - self.held_at, self.centre + self.held_at)
        return np.where(outside, held, rows), np.asarray(outside.any(axis=1))


def spread_of(moments: RunningMoments, rows: Array) -> OutlierBounds:
    """The bounds by the statistics so far; for the first rows [B, O], B > 0, by the range of 99 % of them."""
    if moments.count:
        return OutlierBounds.known(moments.mean, np.sqrt(moments.squares / moments.count), moments.count)
    exact = rows.astype(np.float64)
    centre = np.median(exact, axis=0)
    usual = np.quantile(np.abs(exact - centre), _USUAL_SHARE, axis=0, method="lower")
    return OutlierBounds.known(centre, usual / _USUAL_IN_STDS, len(rows))


def normalise(observations: FloatArray, mean: FloatArray, inverse_std: FloatArray) -> FloatArray:
    """Centred, scaled and clipped observations [..., O]; actor and learner use this one function."""
    scaled = (observations - mean) * inverse_std
    return np.clip(scaled, -CLIP, CLIP, out=scaled)


def hold_rewards(
    moments: RunningMoments,
    start: Moments64,
    rewards: FloatArray,
    valid: npt.NDArray[np.bool_],
    gamma: float,
) -> tuple[Moments64, FloatArray, npt.NDArray[np.bool_]]:
    """Running returns [N] and rewards [T, N] without outliers, and a flag for each outlier, [T, N].

    The measure is the spread of discounted returns, `moments`. In the first batch it is the sum that 99 % of
    its rewards could reach. A reward counts in all returns after it. So an outlier is limited to one standard
    deviation, in the first batch to the largest usual reward. A running return beyond the limit contains an
    outlier of an earlier rollout; its value without the outlier is unknown, so it becomes the mean.
    """
    if moments.count:
        spread = spread_of(moments, rewards)
        held_at = spread.held_at / CLIP
    else:
        usual = np.quantile(np.abs(rewards[valid]), [_USUAL_SHARE], method="lower")
        horizon = 1.0 / max(1.0 - gamma, 1.0 / _LONGEST_HORIZON)
        spread = OutlierBounds.known(np.zeros(1), usual * horizon, int(np.count_nonzero(valid)))
        held_at = usual
    held, outside = OutlierBounds(np.zeros(1), spread.limit, held_at).hold(rewards.reshape(-1, 1))
    start = np.where(np.abs(start - spread.centre) > spread.limit, spread.centre, start)
    return start, held.reshape(rewards.shape), outside.reshape(rewards.shape) & valid


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
