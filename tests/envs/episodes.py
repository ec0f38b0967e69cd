"""Environments whose observations, rewards and episode ends are known in advance."""

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

Vector = npt.NDArray[np.float32]


class FixedLength(gymnasium.Env[Vector, np.int64]):
    """Episodes of `length` steps; the reward is the step index + 1.

    The observation is [steps taken in this episode, episodes begun]: no two of one environment
    are equal, so a test sees which one it was given.
    """

    end: ClassVar[str] = "terminated"
    observation_space = Box(0, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.taken = 0
        self.begun = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.taken = 0
        self.begun += 1
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        del action
        self.taken += 1
        over = self.taken >= self.length
        terminated = over and self.end in ("terminated", "both")
        truncated = over and self.end in ("truncated", "both")
        return self._observation(), float(self.taken), terminated, truncated, {}

    def _observation(self) -> Vector:
        return np.array([self.taken, self.begun], np.float32)


class Terminating(FixedLength):
    """Its episodes terminate."""

    end = "terminated"


class Truncating(FixedLength):
    """Its episodes are truncated."""

    end = "truncated"


class BothFlags(FixedLength):
    """Sets both flags in its last step."""

    end = "both"


class ShortAndGood(FixedLength):
    """Half of the episodes, by their seed, take two steps and return 10; others take `length` and return 0.

    `ms` are slept in each step. An episode that is stepped beyond its end complains.
    """

    end = "terminated"

    def __init__(self, length: int = 30, ms: float = 0.0) -> None:
        super().__init__(length)
        self.longest = length
        self.pause_s = ms / 1000

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        answer = super().reset(seed=seed, options=options)
        self.is_good = bool(self.np_random.integers(2))
        self.length = 2 if self.is_good else self.longest
        return answer

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if self.taken >= self.length:
            raise RuntimeError("stepped after its end")
        time.sleep(self.pause_s)
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 5.0 if self.is_good else 0.0, terminated, truncated, info
