"""An environment whose step takes a set time and no computing: a thousand of them fit on one machine.

`ops.bench.scale.environment:Timed-v0`. It never ends. An observation has `numbers` numbers of four bytes.
"""

import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

ENV_ID = "ops.bench.scale.environment:Timed-v0"
Row = npt.NDArray[np.float32]


class Timed(gymnasium.Env[Row, np.int64]):
    """Each step takes `step_s` seconds and returns random numbers that were drawn once."""

    action_space = Discrete(2)

    def __init__(self, step_s: float = 0.5, numbers: int = 4096) -> None:
        self.observation_space = Box(-1.0, 1.0, (numbers,), np.float32)
        self._step_s = step_s
        self._row: Row = np.zeros(numbers, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Row, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._row = self.np_random.uniform(-1.0, 1.0, len(self._row)).astype(np.float32)
        return self._row.copy(), {}

    def step(self, action: np.int64) -> tuple[Row, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return self._row.copy(), float(action), False, False, {}


gymnasium.register(ENV_ID.partition(":")[2], entry_point=f"{__name__}:Timed")
