"""Action masks in other forms than one array, and at other times than with every observation."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from tests.envs.observations import Masked, Observing


class LaterMasked(Masked):
    """Says what is allowed after a step, not after a reset, when everything is."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {}

    def _allows(self, action: Any) -> bool:
        return self.taken == 0 or super()._allows(action)


class NestedMasked(Observing):
    """A mask nested like the action space, as gymnasium's `sample` takes it."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Dict(
        {"move": Tuple((MultiDiscrete([2, 3]), Discrete(2, start=5))), "push": Box(-1, 1, (2,), np.float32)}
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"action_mask": self.mask()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        (pair, turn), ((first, second), flags) = action["move"], self.mask()["move"]
        if not (first[pair[0]] and second[pair[1]] and flags[turn - 5]):
            raise ValueError(f"action {action} is not allowed after {self.taken} steps")
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": self.mask()}

    def mask(self) -> dict[str, Any]:
        """Two of a pair, and a turn; real numbers have no mask."""
        first, second, turn = np.ones(2, np.int8), np.ones(3, np.int8), np.ones(2, np.int8)
        first[self.taken % 2] = second[self.taken % 3] = turn[self.taken % 2] = 0
        return {"move": ((first, second), turn), "push": None}
