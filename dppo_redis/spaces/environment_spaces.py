"""The spaces of one environment as plain frozen values, which one process can send to another."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.observations import ObservationSpec


@dataclass(frozen=True)
class EnvironmentSpaces:
    """The observation space and the action space of an environment."""

    observation: ObservationSpec
    action: ActionSpec


def shapes_of(observation: ObservationSpec) -> list[list[int]]:
    """The axes of each field as the environment gives them."""
    return [list(field.environment_shape) for field in observation.fields]


def with_shapes(observation: ObservationSpec, shapes: Sequence[Sequence[int]]) -> ObservationSpec:
    """The same fields with the axes that the environment gives.

    Raises:
        ValueError: a shape does not hold as many numbers as its field.
    """
    fields = []
    for field, shape in zip(observation.fields, shapes, strict=True):
        own = tuple(map(operator.index, shape))
        if min(own, default=0) < 0 or math.prod(own) != math.prod(field.shape):
            raise ValueError(f"{field.name} has {math.prod(field.shape)} numbers, not the shape {shape}")
        fields.append(replace(field, own_shape=own))
    return ObservationSpec(tuple(fields))
