"""Environments that misbehave, each in one way."""

import time
from typing import Any

import gymnasium
import numpy as np

from tests.envs.episodes import FixedLength, Vector


class NanObservation(FixedLength):
    """Step number `at` of its life, counted from 1, returns a NaN."""

    def __init__(self, at: int, length: int = 1000) -> None:
        super().__init__(length)
        self.countdown = at

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        answer = super().step(action)
        self.countdown -= 1
        if self.countdown == 0:
            answer[0][0] = np.nan
        return answer


class InfiniteReward(FixedLength):
    """Step number `at` of its life, counted from 1, is rewarded with infinity."""

    def __init__(self, at: int, length: int = 3) -> None:
        super().__init__(length)
        self.countdown = at

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.countdown -= 1
        if self.countdown == 0:
            reward = np.inf
        return observation, reward, terminated, truncated, info


class RaisesInStep(FixedLength):
    """Step number `at` of its life, counted from 1, raises."""

    def __init__(self, at: int, length: int = 3) -> None:
        super().__init__(length)
        self.countdown = at

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError("the simulator lost its licence")
        return super().step(action)


class RaisesInReset(FixedLength):
    """Reset number `at` of its life, counted from 1, raises."""

    def __init__(self, at: int, length: int = 3) -> None:
        super().__init__(length)
        self.countdown = at

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError("the simulator lost its licence")
        return super().reset(seed=seed, options=options)


class Slow(FixedLength):
    """Sleeps `ms` milliseconds in each step."""

    def __init__(self, ms: float, length: int = 3) -> None:
        super().__init__(length)
        self.pause_s = ms / 1000

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause_s)
        return super().step(action)


class OldApi(gymnasium.Env[Vector, np.int64]):
    """The API of Gym 0.21 to 0.25: reset returns the observation alone, step four values."""

    observation_space = FixedLength.observation_space
    action_space = FixedLength.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Vector:  # type: ignore[override]
        del seed, options
        return np.zeros(2, np.float32)

    def step(self, action: np.int64) -> tuple[Vector, float, bool, dict[str, Any]]:  # type: ignore[override]
        del action
        return np.zeros(2, np.float32), 1.0, False, {}


class OldestApi(OldApi):
    """Before that: reset takes no seed either."""

    def reset(self) -> Vector:  # type: ignore[override]
        return np.zeros(2, np.float32)
