"""Code of a user: an environment with an action mask, and a custom network.

Found by both sides over PYTHONPATH; imports nothing of the product.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

_LENGTH = 12


class Masked(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """Rewards larger actions. At each step two of four actions are allowed, and the others raise."""

    observation_space = Box(-10, 10, (3,), np.float32)
    action_space = Discrete(4, start=1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._taken = 0
        return self._see(), {"action_mask": self._mask()}

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if not self._mask()[int(action) - 1]:
            raise ValueError(f"action {action} is not allowed after {self._taken} steps")
        self._taken += 1
        ended = self._taken == _LENGTH
        return self._see(), float(action), ended, False, {"action_mask": self._mask()}

    def _see(self) -> npt.NDArray[np.float32]:
        return self.np_random.normal(size=3).clip(-10, 10).astype(np.float32)

    def _mask(self) -> npt.NDArray[np.int8]:
        allowed = np.zeros(4, np.int8)
        allowed[[self._taken % 4, (self._taken + 2) % 4]] = 1
        return allowed


class Network(nn.Module):
    """One body with dropout, two heads."""

    def __init__(self, sizes: Any, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(sizes.features, 16), nn.Tanh(), nn.Dropout(0.1))
        self.actor = nn.Linear(16, outputs)
        self.critic = nn.Linear(16, 1)

    def policy(self, inputs: Any) -> Tensor:
        outputs: Tensor = self.actor(self.body(inputs.vector))
        return outputs

    def value(self, inputs: Any) -> Tensor:
        values: Tensor = self.critic(self.body(inputs.vector)).squeeze(-1)
        return values


gymnasium.register("Masked-v0", entry_point=f"{__name__}:Masked")
