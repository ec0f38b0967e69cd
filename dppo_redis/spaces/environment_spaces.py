"""What one environment looks like, as plain frozen values: they can be sent from one process to another."""

from dataclasses import dataclass
from typing import Any

import gymnasium

from dppo_redis.spaces.actions import ActionSpec, describe_actions
from dppo_redis.spaces.observations import ObservationSpec, describe_observations


@dataclass(frozen=True)
class EnvironmentSpaces:
    """What is observed in an environment, and what is done."""

    observation: ObservationSpec
    action: ActionSpec


def describe_spaces(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> EnvironmentSpaces:
    """Describe both spaces of an environment.

    Raises:
        ConfigurationError: one is not supported, by its name.
    """
    return EnvironmentSpaces(describe_observations(observation), describe_actions(action))
