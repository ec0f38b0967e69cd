"""Environments that differ only in the type of their observations."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete


class Counting(gymnasium.Env[npt.NDArray[Any], np.int64]):
    """Episodes of four steps; the observation counts them up: 0.5, 1.5, 2.5 in each dimension."""

    observation_space: Box = Box(-1e6, 1e6, (2,), np.float32)
    action_space = Discrete(2)
    first = 0.5

    def __init__(self) -> None:
        self.taken = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.taken = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        del action
        self.taken += 1
        return self._observation(), 1.0, self.taken == 4, False, {}

    def _observation(self) -> npt.NDArray[Any]:
        space = self.observation_space
        return np.full(space.shape, self.taken + self.first, dtype=space.dtype)


class Int32(Counting):
    """Whole numbers, beginning with 0."""

    observation_space = Box(-(2**20), 2**20, (2,), np.int32)
    first = 0.0


class Float64(Counting):
    """Says float64, returns float64."""

    observation_space = Box(-1e6, 1e6, (2,), np.float64)


class SecretlyFloat64(Counting):
    """Says float32, returns float64."""

    def _observation(self) -> npt.NDArray[np.float64]:
        return super()._observation().astype(np.float64)


class Image(Counting):
    """An 8 x 8 colour picture, which this release does not take."""

    observation_space = Box(0, 255, (8, 8, 3), np.uint8)
