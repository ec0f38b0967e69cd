"""Environments that report numbers of their episodes, so that a test can compute each mean by itself."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

EPISODE_STEPS = 4
HOSTILE: dict[Any, Any] = {
    "x" * 1_000_000: 1.0,
    "a,b": 1.0,
    "line\nbreak": 1.0,
    "\x1b[31mred": 1.0,
    "": 1.0,
    7: 1.0,
    "not_finite": float("nan"),
    "infinite": np.inf,
    "text": "12",
    "huge": 10**400,
    "picture": np.zeros((3, 3)),
    "fine": np.float32(0.5),
    "lap time": 3,
    "one": np.array([2.5]),
}
HOSTILE_KEPT = {"fine": 0.5, "lap_time": 3.0, "one": 2.5}


class Reporting(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """Episodes of four steps, numbered from 0 on: every second one succeeds, every third one has a `rare`."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, hostile: bool = False) -> None:
        self._hostile = hostile
        self._episode = -1
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        del action
        self._step += 1
        ends = self._step == EPISODE_STEPS
        info = reported(self._episode, self._hostile) if ends else {"is_success": True, "metrics": {"x": 9}}
        return np.zeros(2, np.float32), 1.0, ends, False, info


def reported(episode: int, hostile: bool = False) -> dict[str, Any]:
    """The last info of an episode, by its number."""
    if hostile:
        return {"metrics": HOSTILE}
    metrics: dict[str, Any] = {"number": episode if episode % 2 else float(episode)}
    if episode % 3 == 0:
        metrics["rare"] = np.float32(episode + 0.5)
    return {"is_success": np.bool_(episode % 2), "metrics": metrics}
