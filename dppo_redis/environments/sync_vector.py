"""Steps environments one after another like gymnasium's SyncVectorEnv, with fewer operations for one Box.

Gymnasium gathers observations in a list, stacks them, and copies the stack with `deepcopy`. Here each
observation is copied once, into its row of a new array. Other spaces are stepped by gymnasium's own code.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from dppo_redis.environments.plain import PlainEnvironment, episode_info, own, plain_numbers
from dppo_redis.spaces.observations import Array

_VectorStep = tuple[Any, Array, Array, Array, dict[str, Any]]


class SameStepVector(SyncVectorEnv):
    """N plain environments, stepped one after another; one that ends is reset in the same step.

    They are reset all at once: `reset_mask` is for vectors without automatic resets.
    """

    def __init__(self, env_fns: Sequence[Callable[[], PlainEnvironment]]) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)
        self._is_box = type(self.single_observation_space) is Box
        # A step does here what PlainEnvironment does: its call takes a third of CartPole's time.
        self._inner = [env.env for env in self.envs if isinstance(env, PlainEnvironment)]

    def step(self, actions: Any) -> _VectorStep:
        """Step all environments; the arrays that it returns are new ones."""
        if not self._is_box:
            return super().step(actions)
        space, count = self.single_observation_space, self.num_envs
        rows: Array = np.empty((count, *(space.shape or ())), space.dtype)
        shape, dtype, others = space.shape, rows.dtype, dict[int, Any]()
        rewards = np.zeros(count)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        infos: dict[str, Any] = {}
        each = actions if type(actions) is np.ndarray else iterate(self.action_space, actions)
        for n, (env, action) in enumerate(zip(self._inner, each, strict=True)):
            observation, reward, terminates, truncates, info = env.step(action)
            if not (terminates is False and truncates is False and isinstance(reward, float)):
                reward, terminates, truncates = plain_numbers(reward, terminates, truncates)
                terminated[n], truncated[n] = terminates, truncates
                if terminates or truncates:
                    last = {"final_obs": own(observation), "final_info": episode_info(info)}
                    infos = self._add_info(infos, last, n)
                    observation, _ = self.envs[n].reset()
            rewards[n] = reward
            if type(observation) is np.ndarray and observation.shape == shape and observation.dtype is dtype:
                rows[n] = observation
            else:
                others[n] = own(observation)
        if others:  # of another type: gymnasium converts them, or refuses
            rows = _concatenated(space, [others.get(n, row) for n, row in enumerate(rows)], rows)
        return rows, rewards, terminated, truncated, infos


def _concatenated(space: Any, observations: Sequence[Any], like: Array) -> Any:
    return concatenate(space, observations, np.empty_like(like))
