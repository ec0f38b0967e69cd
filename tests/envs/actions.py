"""Environments that refuse actions outside their spaces."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiDiscrete

Vector = npt.NDArray[np.float32]


class Strict(gymnasium.Env[Vector, Any]):
    """Endless; remembers each action, and raises on one outside its space."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space[Any]

    def __init__(self) -> None:
        self.received: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.received.append(np.copy(action))
        return self._observation(), 0.0, False, False, {}

    def _observation(self) -> Vector:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class ShiftedDiscrete(Strict):
    """Actions -1, 0 and 1."""

    action_space = Discrete(3, start=-1)


class BoundedRecorder(Strict):
    """Two numbers from -1 to 1."""

    action_space = Box(-1, 1, (2,), np.float32)


class OpenBounds(Strict):
    """One dimension without bounds, one with half, one with both, and one that allows 2 alone.

    The observation has a dimension without bounds and one with the largest float32 as bound.
    """

    low: ClassVar[Vector] = np.array([-np.inf, 0, -1, 2], np.float32)
    high: ClassVar[Vector] = np.array([np.inf, np.inf, 1, 2], np.float32)
    action_space = Box(low, high, dtype=np.float32)
    observation_space = Box(
        np.array([-np.inf, np.finfo(np.float32).min, -1], np.float32),
        np.array([np.inf, np.finfo(np.float32).max, 1], np.float32),
        dtype=np.float32,
    )


class ManyDiscrete(Strict):
    """Two choices at once."""

    action_space = MultiDiscrete([2, 3])


class WholeActions(Strict):
    """A box of whole numbers, which no Gaussian fits."""

    action_space = Box(0, 5, (2,), np.int32)
