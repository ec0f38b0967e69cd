"""Environments with one fault each."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box

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


class _SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class RaisesInStep(FixedLength):
    """Step number `at` of its life, counted from 1, raises: on request an error that cannot be printed."""

    def __init__(self, at: int, length: int = 3, speechless: bool = False) -> None:
        super().__init__(length)
        self.countdown = at
        self.error = _SpeechlessError() if speechless else RuntimeError("the simulator lost its licence")

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.countdown -= 1
        if self.countdown == 0:
            raise self.error
        return super().step(action)


class LeavesInStep(FixedLength):
    """Ends the process, as it believes, in its second step."""

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if self.taken == 1:
            sys.exit("no display")
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
    """Sleeps `ms` milliseconds in each step but the first `quick` ones."""

    def __init__(self, ms: float, length: int = 3, quick: int = 0) -> None:
        super().__init__(length)
        self.pause_s = ms / 1000
        self.quick = quick

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.quick -= 1
        if self.quick < 0:
            time.sleep(self.pause_s)
        return super().step(action)


class SlowFirst(Slow):
    """Copy 0 sleeps `ms` milliseconds in each step, the others do not."""

    def __init__(self, copy: str, ms: float, length: int = 3) -> None:
        super().__init__(ms if copy == "0" else 0.0, length)


class Computing(FixedLength):
    """Computes for `ms` milliseconds in each step."""

    def __init__(self, ms: float, length: int = 3) -> None:
        super().__init__(length)
        self.work_s = ms / 1000

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        began = time.thread_time()
        while time.thread_time() - began < self.work_s:
            pass
        return super().step(action)


class Hangs(FixedLength):
    """Never answers its tenth step, unless another process has met that before; `marker` is a file."""

    def __init__(self, marker: str, length: int = 3) -> None:
        super().__init__(length)
        self.marker = Path(marker)
        self.left = 10

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left == 0 and not self.marker.exists():
            self.marker.touch()
            time.sleep(3600)
        return super().step(action)


class Busy(FixedLength):
    """Cannot be built while the file `port` is there."""

    def __init__(self, port: str, length: int = 3) -> None:
        if Path(port).exists():
            raise RuntimeError("port 1234 is busy")
        super().__init__(length)


class Dies(FixedLength):
    """Kills the process it is in when it is told to take action 1."""

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class OddNumbers(FixedLength):
    """Rewards and flags are right, but of another type in each step."""

    kinds: ClassVar[list[Callable[[float], Any]]] = [
        *(np.float32, np.float64, np.int64, int, np.array, np.atleast_1d)
    ]
    flags: ClassVar[list[Callable[[bool], Any]]] = [int, np.bool_, np.atleast_1d, lambda flag: [flag]]

    def step(self, action: np.int64) -> tuple[Vector, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        kind = self.kinds[self.taken % len(self.kinds)]
        flag = self.flags[self.taken % len(self.flags)]
        return observation, kind(reward), flag(terminated), flag(truncated), info


class RewardsTwice(FixedLength):
    """Two rewards for each step."""

    def step(self, action: np.int64) -> tuple[Vector, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.array([reward, reward]), terminated, truncated, info


class OddInfos(FixedLength):
    """The info has another form in each step, and never the one that its neighbour's has."""

    forms: ClassVar[list[dict[Any, Any]]] = [
        {"a": 1},
        {"a": "text", 7: 8},
        {"a": None, "b": {1, 2}},
        {"a": np.zeros(3), "final_obs": "mine"},
        {"a": np.zeros((2, 2)), "final_info": None},
        {"a": {"b": object()}},
        {},
    ]
    place = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        self.place = self.place if seed is None else seed
        observation, _ = super().reset(seed=seed, options=options)
        return observation, self._form()

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self._form()

    def _form(self) -> dict[Any, Any]:
        return self.forms[(self.place + self.taken + self.begun) % len(self.forms)]


class OtherShape(FixedLength):
    """Observes another number of features than its space says."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return np.append(observation, np.float32(0)), info


class OtherShapeLater(OtherShape):
    """Does so from the first step on, not after a reset."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        return FixedLength.reset(self, seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        observation, reward, *flags, info = super().step(action)
        return np.append(observation, np.float32(0)), reward, flags[0], flags[1], info


class CannotBeClosed(FixedLength):
    """Raises when it is closed."""

    def close(self) -> None:
        raise RuntimeError("the window is gone")


class Different(FixedLength):
    """Each one that is built observes one feature more than the one before."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        Different.built += 1
        self.observation_space = Box(0, np.inf, (1 + Different.built,), np.float32)

    def _observation(self) -> Vector:
        return np.zeros(self.observation_space.shape or (), np.float32)


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


class FourValues(FixedLength):
    """Its reset is new, its step is not."""

    def step(self, action: np.int64) -> tuple[Vector, float, bool, dict[str, Any]]:  # type: ignore[override]
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldestApi(OldApi):
    """Before that: reset takes no seed either."""

    def reset(self) -> Vector:  # type: ignore[override]
        return np.zeros(2, np.float32)
