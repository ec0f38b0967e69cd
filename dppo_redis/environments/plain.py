"""Wraps an environment for our vectors: plain numbers, and copied observations with the action mask."""

import copy
from typing import Any

import gymnasium
import numpy as np

from dppo_redis.environments.masks import MASK, read_mask
from dppo_redis.service.process_state import keeping_signals
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.episode_metrics import NOTHING, REPORTED, read_episode
from dppo_redis.spaces.gymnasium_spaces import MaskSpace, describe_actions
from dppo_redis.spaces.observations import Array

_FLAG = (bool, np.bool_)


class OwnObservations(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Returns copies of observations: environments reuse their buffers, and wrappers keep observations."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return own(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        return own(observation), *rest


def copy_innermost(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """An environment that copies its observations inside all of its wrappers.

    A frame stack that keeps one buffer k times would show one frame k times.
    """
    if not isinstance(env, gymnasium.Wrapper):
        return OwnObservations(env)
    inner = env
    while isinstance(inner.env, gymnasium.Wrapper):
        inner = inner.env
    inner.env = OwnObservations(inner.env)
    return env


class PlainEnvironment(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment in the form that our vectors need.

    * It removes `info` except the metrics of an ended episode: vectors cannot stack values of varying types.
    * It copies each observation, because environments reuse their buffers.
    * It puts the action mask beside the observation.
    * It converts flags, because a vector takes [False] for true.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], masked: bool) -> None:
        super().__init__(env)
        self._masked = masked
        self._action = describe_actions(env.action_space)
        self.observation_space = observed_space(env, self._action, masked)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        with keeping_signals():
            observation, info = self.env.reset(**arguments)
        return self._observe(observation, info), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward, terminated, truncated = plain_numbers(reward, terminated, truncated)
        reported = episode_info(info) if terminated or truncated else {}
        return self._observe(observation, info), reward, terminated, truncated, reported

    def _observe(self, observation: Any, info: dict[str, Any]) -> Any:
        observation = own(observation)
        if not self._masked:
            return observation
        return {"observation": observation, MASK: read_mask(info.get(MASK), self._action)}


def own(observation: Any) -> Any:
    """A copy, of any structure; `deepcopy` takes six times as long for a small array."""
    if type(observation) is np.ndarray and not observation.dtype.hasobject:
        return observation.copy()
    return copy.deepcopy(observation)


def episode_info(info: dict[str, Any]) -> dict[str, Any]:
    """The metrics of an ended episode for `info`, as one value that vectors cannot round or mix up."""
    metrics = read_episode(info)
    return {} if metrics is NOTHING else {REPORTED: metrics}


def plain_numbers(reward: Any, terminated: Any, truncated: Any) -> tuple[float, bool, bool]:
    """Convert arrays, tensors or lists of one number each into one number and two flags.

    Raises:
        ValueError: one of them is not one number.
    """
    if isinstance(reward, float) and isinstance(terminated, _FLAG) and isinstance(truncated, _FLAG):
        return reward, bool(terminated), bool(truncated)
    numbers = []
    for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        array: Array = np.asarray(value)
        if array.size != 1:
            raise ValueError(f"a {name} of shape {array.shape}, where one number is needed")
        numbers.append(array.item())
    return float(numbers[0]), bool(numbers[1]), bool(numbers[2])


def observed_space(env: gymnasium.Env[Any, Any], action: ActionSpec, masked: bool) -> gymnasium.Space[Any]:
    """The observation space, with `masked` a Dict of it and the action mask."""
    if not masked:
        return env.observation_space
    return gymnasium.spaces.Dict({"observation": env.observation_space, MASK: MaskSpace(action.choices)})
