"""Describes gymnasium's space objects as plain frozen values.

Only this module of `spaces` imports gymnasium. A process that reads descriptions and has no environment, such
as the learner, does not import it.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces.actions import (
    ActionSpec,
    BoxSpec,
    CompositeSpec,
    DiscreteSpec,
    MultiDiscreteSpec,
    Part,
)
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.observations import BYTES, Field, ObservationSpec, Path

_OBSERVATION_SPACES = "Box of any shape, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
_ACTION_SPACES = "Discrete, MultiDiscrete, MultiBinary, Box of floats, and Dict and Tuple of these"
_MOST_CATEGORIES = 65_536  # the limit for one-hot vectors and policy heads


class MaskSpace(MultiBinary):
    """The space of an action mask, which stands beside the observation if the environment has one."""


def describe_spaces(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> EnvironmentSpaces:
    """Describe both spaces of an environment.

    Raises:
        ConfigurationError: one is not supported, by its name.
    """
    return EnvironmentSpaces(describe_observations(observation), describe_actions(action))


def describe_observations(space: gymnasium.Space[Any]) -> ObservationSpec:
    """Describe an observation space.

    Raises:
        ConfigurationError: a space that is not supported, by its name.
    """
    fields = tuple(_describe_fields(space, ()))
    for field in fields:
        _check_categories(space, field.sizes)
    if not any(field.features or field.kind == "image" for field in fields):
        raise ConfigurationError(f"observation space {space} holds nothing to observe")
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"observation space {space} has two parts of one name: {sorted(names)}")
    return ObservationSpec(fields)


def _check_categories(space: gymnasium.Space[Any], sizes: tuple[int, ...]) -> None:
    """Refuse too many categories.

    Raises:
        ConfigurationError: there are more than _MOST_CATEGORIES of them.
    """
    if sum(sizes) > _MOST_CATEGORIES:
        raise ConfigurationError(
            f"space {space} has {sum(sizes):,} categories; at most {_MOST_CATEGORIES:,} are supported"
        )


def _keys_in_order(space: Dict) -> list[Any]:
    """The keys of a Dict in a fixed order, numbers before texts, independent of the order in the Dict.

    Raises:
        ConfigurationError: a key is of another type, which JSON cannot hold.
    """
    for key in space.spaces:
        if not isinstance(key, str | int):
            raise ConfigurationError(
                f"space {space} has the key {key!r}: keys of a Dict are texts or whole numbers"
            )
    return sorted(space.spaces, key=lambda key: (isinstance(key, str), key))


def _describe_fields(space: gymnasium.Space[Any], path: Path) -> Iterator[Field]:
    if isinstance(space, Dict):
        for key in _keys_in_order(space):
            yield from _describe_fields(space.spaces[key], (*path, key))
    elif isinstance(space, Tuple):
        for index, part in enumerate(space.spaces):
            yield from _describe_fields(part, (*path, index))
    else:
        yield replace(_describe_field(space, path), own_shape=space.shape)


def _describe_field(space: gymnasium.Space[Any], path: Path) -> Field:
    if isinstance(space, MaskSpace):
        return Field(path, "mask", (math.prod(space.shape),), "int8")
    if isinstance(space, MultiBinary):
        return Field(path, "binary", (math.prod(space.shape),), str(space.dtype))
    if isinstance(space, Discrete):
        return Field(path, "categories", (1,), str(space.dtype), (int(space.n),), (int(space.start),))
    if isinstance(space, MultiDiscrete):
        nvec, start = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        return Field(path, "categories", (len(nvec),), str(space.dtype), tuple(nvec), tuple(start))
    if isinstance(space, Box) and math.prod(space.shape) > 0 and np.dtype(space.dtype).kind in "fiub":
        return _describe_observation_box(space, path)
    where = f" (part {'.'.join(map(str, path))})" if path else ""
    raise ConfigurationError(
        f"observation space {space}{where} is not supported: there are {_OBSERVATION_SPACES}; "
        "a wrapper such as gymnasium's FilterObservation may drop or change a part"
    )


def _describe_observation_box(space: Box, path: Path) -> Field:
    """Bytes of two or three axes are an image; everything else is a vector."""
    dtype = str(space.dtype)
    if dtype in BYTES and len(space.shape) in (2, 3):
        return Field(path, "image", space.shape, dtype, high=float(max(1, space.high.max())))
    return Field(path, "vector", (math.prod(space.shape),), dtype)


def describe_actions(space: gymnasium.Space[Any]) -> ActionSpec:
    """Describe an action space.

    Raises:
        ConfigurationError: a space that is not supported, by its name.
    """
    spec = ActionSpec(_describe_action(space))
    _check_categories(space, spec.categories)
    if spec.outputs == 0:
        raise ConfigurationError(f"action space {space} has nothing to choose from")
    return spec


def _describe_action(space: gymnasium.Space[Any]) -> Part:
    if isinstance(space, Dict):
        names = tuple(_keys_in_order(space))
        return CompositeSpec(names, tuple(_describe_action(space.spaces[name]) for name in names))
    if isinstance(space, Tuple):
        return CompositeSpec(None, tuple(_describe_action(part) for part in space.spaces))
    if isinstance(space, Discrete):
        return DiscreteSpec(n=int(space.n), start=int(space.start))
    if isinstance(space, MultiDiscrete):
        sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        return MultiDiscreteSpec(tuple(sizes), tuple(starts), space.shape, str(space.dtype))
    if isinstance(space, MultiBinary):
        count = math.prod(space.shape)
        return MultiDiscreteSpec((2,) * count, (0,) * count, space.shape, str(space.dtype))
    if isinstance(space, Box) and space.dtype is not None:
        return _describe_action_box(space)
    raise ConfigurationError(f"action space {space} is not supported: there are {_ACTION_SPACES}")


def _describe_action_box(space: Box) -> BoxSpec:
    if not np.issubdtype(space.dtype, np.floating):
        raise ConfigurationError(
            f"action space {space} is not supported: a Box of {space.dtype}; there are {_ACTION_SPACES}"
        )
    if np.isnan(space.low).any() or np.isnan(space.high).any() or (space.low > space.high).any():
        raise ConfigurationError(f"action space {space} has bounds that no action satisfies")
    low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
    if not low:
        raise ConfigurationError(f"action space {space} has no dimension")
    return BoxSpec(shape=space.shape, low=tuple(low), high=tuple(high), dtype=str(space.dtype))
