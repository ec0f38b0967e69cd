"""The plan of a run: all values that follow from its configuration and its environment. Pure.

A command inspects the environment once, plans once before it starts a process, and passes the plan on.
"""

from dataclasses import dataclass

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.pacing import Derived, as_used, derive
from dppo_redis.protocol.spec import RunDescription, describe_run
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces


@dataclass(frozen=True)
class RunPlan:
    """Configuration, spaces and derived numbers of a run, and the description for its actors."""

    config: RunConfig
    spaces: EnvironmentSpaces
    derived: Derived
    description: RunDescription

    @property
    def config_as_used(self) -> RunConfig:
        """The configuration with the derived numbers that a resumed run keeps."""
        return as_used(self.config, self.derived)


def plan(config: RunConfig, spaces: EnvironmentSpaces, *, serial: bool, goes_on: bool = False) -> RunPlan:
    """Plan a run: in one process if `serial`, else with a fleet, which may be larger if the run `goes_on`.

    Raises:
        ConfigurationError: settings that cannot work together, with the number to change.
    """
    derived = derive(config, spaces, serial=serial, goes_on=goes_on)
    return RunPlan(config, spaces, derived, describe_run(config, spaces, derived.rollout_steps))


def describe_started(config: RunConfig, spaces: EnvironmentSpaces) -> RunDescription:
    """The description of a started run, whose configuration holds the rollout length.

    It does not depend on the fleet. Only the rollout length is a derived number, so no setting is refused.
    """
    steps = config.rollout_steps or derive(config, spaces).rollout_steps
    return describe_run(config, spaces, steps)


def refuse_another_plan(stored: RunConfig, seen: EnvironmentSpaces, now: RunPlan) -> None:
    """Refuse to resume a run with other settings than those of its checkpoint.

    `stored` is the run's own configuration, `seen` are the spaces of its environment.

    Raises:
        ConfigurationError: with what differs.
    """
    before = describe_run(stored, seen, stored.rollout_steps or 1)
    plans = [
        (d.join.lock_step, d.join.lock_step and d.join.envs_per_actor) for d in (before, now.description)
    ]
    if plans[0] != plans[1]:
        raise ConfigurationError(
            "a resumed run keeps its lock-step mode, and in it its actors, environments and segments: "
            "leave that setting out, or start a new run"
        )
    beginnings = [(c.init_from, c.ppo.initial_std) for c in (stored, now.config)]
    if beginnings[0] != beginnings[1]:
        raise ConfigurationError(
            "init_from and ppo.initial_std say how a run begins, and a resumed one goes on with its own "
            "checkpoint: leave that setting out, or start a new run"
        )
    differences = before.spec.differences(now.description.spec)
    if differences:
        raise ConfigurationError(
            f"a resumed run keeps its environment, rollout length, network and normalisation "
            f"({'; '.join(differences)}): leave that setting out, or start a new run"
        )
