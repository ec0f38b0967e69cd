"""A policy that plays one environment: it takes observations and returns actions.

Users' scripts act with a trained policy through `Player`. Sampling for training is in `workers`.
"""

from typing import Any

from numpy.random import Generator

from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState


class Player:
    """Plays one environment; keeps the frames and the memory that the policy needs.

        player = Player(load_export("policy"))
        observation, info = env.reset()
        player.begin()
        action = player.act(observation)

    With an action mask the observation is {"observation": ..., "action_mask": flags [choices]}.
    """

    def __init__(self, policy: ActingPolicy, sampling: Generator | None = None) -> None:
        """Play with `policy`: greedily, unless `sampling` draws the actions."""
        self.policy = policy
        self._sampling = sampling
        self.begin()

    def begin(self) -> None:
        """Begin an episode: forget frames and memory."""
        self._state: PolicyState | None = None

    def act(self, observation: Any, sampling: Generator | None = None) -> Any:
        """The environment's action for one of its observations, in any shape of its spaces.

        `sampling` draws this action; without it the player's own generator does, if it has one.
        """
        policy = self.policy
        row = policy.spec.observation.pack(observation)[None]
        if self._state is None:
            self._state = PolicyState(policy.spec, row)
        else:
            self._state.observe(row)
        actions = policy.actions(self._state.outputs(policy), sampling or self._sampling)
        return _only(policy.action.to_environment(actions))


def _only(actions: Any) -> Any:
    """The first of many actions: the action of the player's one environment."""
    if isinstance(actions, dict):
        return {name: _only(part) for name, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_only(part) for part in actions)
    return actions[0]
