"""Refuses wrappers that normalise by running statistics of their own, at any depth of an environment."""

from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import wrappers
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import vector

from dppo_redis.errors import ConfigurationError

_SETTINGS = {
    "NormalizeObservation": "ppo.normalise_observations",
    "NormalizeReward": "ppo.normalise_returns",
}
_TYPES = tuple(getattr(home, name) for home in (wrappers, vector) for name in _SETTINGS)


def refuse_normalisers(env: Any, subject: str) -> None:
    """Refuse an environment if it contains such a wrapper; the message names it by `subject`.

    Raises:
        ConfigurationError: it contains one; the message names the wrapper and the setting to use instead.
    """
    for layer in _layers(env):
        base = next((one for one in type(layer).__mro__ if _is_normaliser(one)), None)
        if base is not None:
            own = type(layer).__name__
            name = own if own == base.__name__ else f"{own}, a {base.__name__},"
            raise ConfigurationError(
                f"{subject}: the wrapper {name} would keep statistics of its own in each environment, which "
                "neither other actors nor the learner nor an evaluation have: "
                f"set {_SETTINGS[base.__name__]} instead"
            )


def _is_normaliser(kind: type) -> bool:
    """Whether a class is gymnasium's, or that of the older Gym, which is usually not installed here."""
    return kind in _TYPES or (kind.__name__ in _SETTINGS and kind.__module__.partition(".")[0] == "gym")


def _layers(env: Any) -> Iterator[Any]:
    """The environment and all environments that it holds in attributes or lists, at any depth, each once."""
    seen: set[int] = set()
    ahead = [env]
    while ahead:
        layer = ahead.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        held = getattr(layer, "__dict__", {})
        for value in list(held.values()) if isinstance(held, dict) else []:
            parts = value if isinstance(value, (list, tuple)) and len(value) <= 1024 else (value,)
            ahead += [one for one in parts if _is_environment(one)]


def _is_environment(value: Any) -> bool:
    if isinstance(value, (gymnasium.Env, VectorEnv)):
        return True
    return any(base.__module__.partition(".")[0] == "gym" for base in type(value).__mro__)
