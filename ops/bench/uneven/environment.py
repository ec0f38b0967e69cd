"""CartPole whose steps take very different times: 5 ms in the mean (exponential), one in a hundred 200 ms.

It sleeps, as for a simulator elsewhere. The times are drawn apart from CartPole's own random numbers.
"""

import random
import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

ENV_ID = "ops.bench.uneven.environment:UnevenCartPole-v1"
MEAN_MS, SLOW_MS, SLOW_SHARE = 5.0, 200.0, 0.01
EXPECTED_S = ((1 - SLOW_SHARE) * MEAN_MS + SLOW_SHARE * SLOW_MS) / 1000  # of one pause


class UnevenCartPole(CartPoleEnv):
    """CartPole that pauses in each step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pauses = random.Random()
        self.paused_s = 0.0  # what was asked for, in all steps so far

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """A step of CartPole, after a pause."""
        is_slow = self._pauses.random() < SLOW_SHARE
        pause_s = (SLOW_MS if is_slow else self._pauses.expovariate(1 / MEAN_MS)) / 1000
        self.paused_s += pause_s
        time.sleep(pause_s)
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, reward, terminated, truncated, info


gymnasium.register(ENV_ID.partition(":")[2], entry_point=UnevenCartPole, max_episode_steps=500)
