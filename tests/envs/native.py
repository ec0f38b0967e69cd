"""Native vector environments: several environments in one object, registered beside a single one."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.envs.episodes import Terminating, Vector

Batch = npt.NDArray[Any]


class Single(Terminating):
    """The single environment that the native vectors stand for."""

    def __init__(self, length: int = 3, fault: str = "") -> None:
        super().__init__(length)
        self.fault = fault


class Native(VectorEnv[Vector, Batch, Batch]):
    """Many of `Single`; `fault` is what is wrong with it, if anything."""

    def __init__(self, num_envs: int = 1, length: int = 3, fault: str = "") -> None:
        if fault == "raises":
            raise RuntimeError("no device")
        self.metadata = {} if fault == "no mode" else {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self.length, self.fault = num_envs, length, fault
        self.single_action_space = Single.action_space
        self.single_observation_space = Box(-1, 1, (2, 2)) if fault == "space" else Single.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.taken = np.zeros(num_envs, np.int64)
        self.begun = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.taken[:] = 0
        self.begun += 1
        return self._observations(), {}

    def step(self, actions: Any) -> tuple[Any, Batch, Batch, Batch, dict[str, Any]]:
        del actions
        anew = self.taken == self.length
        self.taken = np.where(anew, 0, self.taken + 1)
        self.begun += anew
        rewards, ended = self.taken.astype(np.float64), self.taken == self.length
        truncated = np.zeros(self.num_envs, np.bool_)
        if self.fault == "columns":
            rewards, ended, truncated = rewards[:, None], ended[:, None], truncated[:, None]
        return self._observations(), rewards, ended, truncated, {}

    def _observations(self) -> Batch:
        return np.stack([self.taken, self.begun], axis=-1).astype(np.float32)
