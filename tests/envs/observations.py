"""Environments that differ only in the type of their observations."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple


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
    """An 8 x 8 colour picture of one brightness that counts the steps."""

    observation_space = Box(0, 255, (8, 8, 3), np.uint8)


class Observing(gymnasium.Env[Any, Any]):
    """Episodes with random observations, as seeded, of the space a subclass names.

    They take `length` steps, of which each is rewarded with its number.
    """

    observation_space: gymnasium.Space[Any] = Discrete(5, start=-2)
    action_space: gymnasium.Space[Any] = Discrete(2)

    def __init__(self, length: int = 4, cut: bool = False) -> None:
        self.observation_space = deepcopy(self.observation_space)  # with a generator of its own
        self.length, self.cut = length, cut
        self.taken = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self.taken = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.taken += 1
        over = self.taken == self.length
        return (
            self.observation_space.sample(),
            float(self.taken),
            over and not self.cut,
            over and self.cut,
            {},
        )


class Category(Observing):
    """One of five, numbered from -2."""


class OutsideOnce(Observing):
    """Its step number `at` shows a category that its space does not have."""

    observation_space = MultiDiscrete([2, 3], start=[0, 5])

    def __init__(self, at: int, category: int = 8, length: int = 4) -> None:
        super().__init__(length)
        self.countdown, self.category = at, category

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        self.countdown -= 1
        if self.countdown == 0:
            observation[1] = self.category
        return observation, *rest


class Categories(Observing):
    observation_space = MultiDiscrete([2, 3, 4], start=[0, 5, -1])


class Flags(Observing):
    observation_space = MultiBinary([2, 2])


class Grid(Observing):
    """A small colour picture, channels last."""

    observation_space = Box(0, 255, (8, 9, 3), np.uint8)


class Grey(Observing):
    observation_space = Box(0, 255, (8, 9), np.uint8)


class Screen(Observing):
    """Large enough for the Nature CNN, channels first."""

    observation_space = Box(0, 255, (3, 40, 44), np.uint8)


class Matrix(Observing):
    observation_space = Box(-1, 1, (2, 3), np.float64)


class Number(Observing):
    observation_space = Box(-1, 1, (), np.float32)


class Memory(Observing):
    """The 16 bytes of a machine's memory."""

    observation_space = Box(0, 255, (16,), np.uint8)


class Named(Observing):
    """Parts of every kind, nested, and not in the order of their names."""

    observation_space = Dict(
        {
            "zoom": Box(-1, 1, (2,), np.float32),
            "camera": Box(0, 255, (8, 9, 3), np.uint8),
            "arm": Tuple([Discrete(3, start=1), Box(-np.inf, np.inf, (3,), np.float64)]),
            "flags": MultiBinary(2),
        }
    )


class Spoken(Observing):
    """As minigrid has it: a small picture of bytes, a direction, and a mission in words."""

    observation_space = Dict(
        {
            "image": Box(0, 255, (7, 7, 3), np.uint8),
            "direction": Discrete(4),
            "mission": Text(20),
        }
    )


class Pair(Observing):
    observation_space = Tuple([Box(-1, 1, (2,), np.float32), Discrete(3)])


class Parts(Observing):
    """Actions of every kind at once; the step checks that they are of the space."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Dict(
        {
            "turn": Discrete(3, start=-1),
            "gears": MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [2, 3]])),
            "lights": MultiBinary(2),
            "wheels": Tuple((Box(-1, np.inf, (2,), np.float32), Box(-0.5, 0.5, (1, 2), np.float64))),
        }
    )


class Buttons(Observing):
    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = MultiBinary(3)


class Masked(Observing):
    """Allows two of four actions at each step and raises when another one comes."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space[Any] = Discrete(4, start=1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._allows(action):
            raise ValueError(f"action {action} is not allowed after {self.taken} steps")
        observation, reward, terminated, truncated, _ = super().step(action)
        mask = self._mask()
        if terminated or truncated:
            mask = np.zeros_like(mask)
        return observation, reward, terminated, truncated, {"action_mask": mask}

    def _allows(self, action: Any) -> bool:
        return bool(self._mask()[action - 1])

    def _mask(self) -> npt.NDArray[np.int8]:
        allowed = np.zeros(4, np.int8)
        allowed[[self.taken % 4, (self.taken + 2) % 4]] = 1
        return allowed


class WronglyMasked(Masked):
    def _mask(self) -> npt.NDArray[np.int8]:
        return np.ones(5, np.int8)


class Narrow(Masked):
    """Allows one of a thousand actions."""

    action_space = Discrete(1000)

    def _allows(self, action: Any) -> bool:
        return bool(self._mask()[action])

    def _mask(self) -> npt.NDArray[np.int8]:
        allowed = np.zeros(1000, np.int8)
        allowed[500 + self.taken] = 1
        return allowed


class RaggedlyMasked(Masked):
    """A list of lists of different lengths where flags, or a tuple of arrays, are due."""

    action_space = MultiDiscrete([2, 3])

    def _allows(self, action: Any) -> bool:
        del action
        return True

    def _mask(self) -> Any:
        return [[1, 1], [1, 1, 1, 1]]


class MaskedBox(Masked):
    """A mask for actions that are no choices."""

    action_space = Box(-1, 1, (2,), np.float32)

    def _allows(self, action: Any) -> bool:
        del action
        return True

    def _mask(self) -> npt.NDArray[np.int8]:
        return np.ones(2, np.int8)


class Everything(Observing):
    """Observations of every kind, actions of every kind, and a mask: the one lamp shines, then the other."""

    observation_space = Named.observation_space
    action_space = Parts.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action["lights"][self.taken % 2]:
            raise ValueError(f"lamp {self.taken % 2} is lit after {self.taken} steps")
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": self._mask()}

    def _mask(self) -> tuple[npt.NDArray[np.int8], ...]:
        """One array for each category: four gears, two lamps, the turn; a lamp is off or on."""
        lamps = [np.array([1, lamp != self.taken % 2], np.int8) for lamp in (0, 1)]
        return (*(np.ones(n, np.int8) for n in (2, 3, 4, 2)), *lamps, np.ones(3, np.int8))


class MaskedPair(Observing):
    """Two categories at once; the mask is a tuple, as gymnasium's MultiDiscrete.sample takes it."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = MultiDiscrete([2, 3], start=[5, 0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not all(mask[choice] for mask, choice in zip(self._mask(), action - [5, 0], strict=True)):
            raise ValueError(f"action {action} is not allowed after {self.taken} steps")
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": self._mask()}

    def _mask(self) -> tuple[npt.NDArray[np.int8], ...]:
        first, second = np.ones(2, np.int8), np.ones(3, np.int8)
        first[self.taken % 2] = second[self.taken % 3] = 0
        return first, second


class Reusing(Observing):
    """Hands out one buffer again and again; the observation is the number of steps taken."""

    observation_space = Box(0, 100, (2,), np.float32)

    def __init__(self, length: int = 4, cut: bool = False) -> None:
        super().__init__(length, cut)
        self.buffer = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = super().step(action)
        self.buffer[:] = self.taken
        return self.buffer, reward, terminated, truncated, info


class ReusingNamed(Observing):
    """The same with buffers inside a dict."""

    observation_space = Dict(
        {"count": Box(0, 100, (2,), np.float32), "screen": Box(0, 255, (2, 3), np.uint8)}
    )

    def __init__(self, length: int = 4, cut: bool = False) -> None:
        super().__init__(length, cut)
        self.buffers: dict[str, npt.NDArray[Any]] = {
            "count": np.zeros(2, np.float32),
            "screen": np.zeros((2, 3), np.uint8),
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = super().step(action)
        return self._show(), reward, terminated, truncated, info

    def _show(self) -> dict[str, npt.NDArray[Any]]:
        for buffer in self.buffers.values():
            buffer[:] = self.taken
        return self.buffers


class Recall(gymnasium.Env[Any, Any]):
    """Shows one of two signs at first, then nothing; rewarded is the action that names the sign.

    Without a memory no policy has more than half of the reward of 4 in expectation.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)
    length = 5

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.sign, self.taken = int(self.np_random.integers(2)), 0
        return np.array([2 * self.sign - 1, 1], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.sign) if self.taken else 0.0
        self.taken += 1
        return np.zeros(2, np.float32), reward, self.taken == self.length, False, {}
