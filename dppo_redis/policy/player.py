"""A policy that plays one environment: observations in, actions out.

Your own script uses a trained policy through `Player`. Sampling for training is in `workers`.
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
        """Greedy, unless `sampling` draws the actions."""
        self.policy = policy
        self._sampling = sampling
        self.begin()

    def begin(self) -> None:
        """Forget everything: an episode begins."""
        self._state: PolicyState | None = None

    def act(self, observation: Any, sampling: Generator | None = None) -> Any:
        """The action for one observation of the environment, as the environment takes it.

        `sampling` draws this one action.
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
    """The action of the one environment among the actions of many."""
    if isinstance(actions, dict):
        return {name: _only(part) for name, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_only(part) for part in actions)
    return actions[0]
