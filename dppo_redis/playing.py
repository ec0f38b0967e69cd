"""A policy in the seat of one environment's player: observations in, actions out.

What a script of one's own needs to use what was learnt. Sampling for training is in `workers`.
"""

from typing import Any

import numpy as np
from numpy.random import Generator

from dppo_redis.acting import ActingPolicy
from dppo_redis.features import push_frame
from dppo_redis.spaces import Array


class Player:
    """Plays one environment; keeps the frames and the memory that the policy needs.

        player = Player(load_export("policy"))
        observation, info = env.reset()
        player.begin()
        action = player.act(observation)

    With an action mask the observation is {"observation": ..., "action_mask": flags [choices]}.
    """

    def __init__(self, policy: ActingPolicy, sampling: Generator | None = None) -> None:
        """Greedy, unless `sampling` draws the actions."""
        self.policy = policy
        self._sampling = sampling
        self.begin()

    def begin(self) -> None:
        """Forget everything: an episode begins."""
        self._memory = self.policy.begin(1)
        self._frames: Array | None = None

    def act(self, observation: Any) -> Any:
        """The action for one observation of the environment, as the environment takes it."""
        policy = self.policy
        outputs, self._memory = policy.step(self._look(observation), self._memory)
        if self._sampling is None:
            actions = policy.greedy(outputs)
        else:
            actions = policy.sample(outputs, policy.noise(self._sampling, 1, 1)[0])
        return _only(policy.action.to_environment(actions))

    def _look(self, observation: Any) -> Array:
        """Rows [1, ...], or [1, k, ...] of stacked frames."""
        spec = self.policy.spec
        newest = spec.observation.pack(observation)[None]
        if spec.frame_stack == 1:
            return newest
        if self._frames is None:
            self._frames = np.repeat(newest[:, None], spec.frame_stack, axis=1)
        else:
            self._frames = push_frame(self._frames, newest)
        return self._frames


def _only(actions: Any) -> Any:
    """The action of the one environment among the actions of many."""
    if isinstance(actions, dict):
        return {name: _only(part) for name, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_only(part) for part in actions)
    return actions[0]
