"""The plan of a run: all values that follow from its configuration and its environment. Pure.

A command inspects the environment once, plans once before it starts a process, and passes the plan on.
"""

import math
from dataclasses import dataclass, replace

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import MAX_PAYLOAD_BYTES, RunConfig
from dppo_redis.protocol.lock_step import LockStep, lock_step_of
from dppo_redis.protocol.pacing import (
    Derived,
    FleetPacing,
    backlog_fresh,
    backlog_high,
    expected_staleness,
    least_staleness_limit,
    rollouts_missing,
    valve_bytes,
)
from dppo_redis.protocol.spec import RunDescription, describe_run
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.network_memory import learner_bytes

SERIAL_UPDATE_EPOCHS = 10
DISTRIBUTED_UPDATE_EPOCHS = 6


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


def as_used(config: RunConfig, derived: Derived) -> RunConfig:
    """`config` with those derived numbers that every resume of the run keeps."""
    ppo = config.ppo.model_copy(update={"update_epochs": derived.update_epochs})
    return config.model_copy(update={"rollout_steps": derived.rollout_steps, "ppo": ppo})


def derive(
    config: RunConfig, spaces: EnvironmentSpaces, *, serial: bool = False, may_shorten: bool = False
) -> Derived:
    """Derive a run's numbers. If the fleet is too large for T, `may_shorten` lets it sample shorter rollouts.

    Raises:
        ConfigurationError: settings that cannot work together, with the number to change.
    """
    actors = 1 if serial and not config.lock_step else config.actors
    ppo = config.ppo
    rollout_steps = config.rollout_steps or max(1, ppo.batch_steps // (actors * config.envs_per_actor))
    _refuse_partial_rollouts(config, rollout_steps)
    lock_step = lock_step_of(config, rollout_steps)
    is_fresh = serial or lock_step is not None  # every batch has staleness 0
    sampled_steps = rollout_steps
    if may_shorten and not is_fresh:
        sampled_steps = FleetPacing.with_length(config, rollout_steps).pace(actors).rollout_steps
    rows = sampled_steps * config.envs_per_actor
    per_update = lock_step.rollouts_per_update if lock_step else rollouts_missing(0, rows, ppo.batch_steps)
    samples = per_update * rows
    epochs = ppo.update_epochs or (SERIAL_UPDATE_EPOCHS if is_fresh else DISTRIBUTED_UPDATE_EPOCHS)
    high, fresh = _backlog_limits(config, lock_step, per_update, actors)
    if not is_fresh and high < 1:
        raise ConfigurationError(
            f"{actors} actors with {per_update} rollouts per update cannot stay within max_staleness "
            f"{config.max_staleness}: set max_staleness to "
            f"{least_staleness_limit(per_update, actors, config.publish_every)} or more, "
            "or use fewer actors or shorter rollouts"
        )
    rollout_bytes = _rollout_bytes(rows, config, spaces)
    if not serial:
        _refuse_large_rollouts(config, rollout_steps, rollout_bytes)
    staleness = 0.0 if is_fresh else expected_staleness(fresh, actors, per_update, config.publish_every)
    return Derived(
        rollout_steps=rollout_steps,
        sampled_steps=sampled_steps,
        rollout_rows=rows,
        rollouts_per_update=per_update,
        samples_per_update=samples,
        update_epochs=epochs,
        gradient_steps_per_update=epochs * math.ceil(samples / ppo.minibatch_size),
        backlog_high=high,
        backlog_fresh=fresh,
        expected_staleness=staleness,
        rollout_bytes=rollout_bytes,
        learner_bytes=_learner_bytes(config, spaces, samples, per_update * rollout_bytes),
        valve_bytes=valve_bytes(high, actors, rollout_bytes),
    )


def _backlog_limits(
    config: RunConfig, lock_step: LockStep | None, rollouts_per_update: int, actors: int
) -> tuple[int, int]:
    """The backlog limit while the learner waits for rollouts, and while it need not wait; in rollouts."""
    if lock_step:
        return rollouts_per_update, rollouts_per_update
    high = backlog_high(rollouts_per_update, actors, config.max_staleness, config.publish_every)
    return high, backlog_fresh(high, rollouts_per_update, actors)


def _refuse_partial_rollouts(config: RunConfig, rollout_steps: int) -> None:
    """Refuse minibatches of parts of rollouts for a network with a memory, which needs whole ones."""
    rows = config.ppo.minibatch_size
    if config.network.memory == "none" or rows % rollout_steps == 0:
        return
    raise ConfigurationError(
        f"ppo.minibatch_size ({rows}) must be a multiple of the rollout length "
        f"({rollout_steps}), as a network with a memory is trained on whole rollouts: "
        f"set ppo.minibatch_size to {rollout_steps * max(1, round(rows / rollout_steps))}, "
        "or choose rollout_steps"
    )


def _refuse_large_rollouts(config: RunConfig, rollout_steps: int, rollout_bytes: int) -> None:
    """Refuse rollouts that are too large for one message."""
    if rollout_bytes <= MAX_PAYLOAD_BYTES:
        return
    fitting = max(1, int(0.99 * rollout_steps * MAX_PAYLOAD_BYTES / rollout_bytes))
    raise ConfigurationError(
        f"a rollout of {rollout_steps} steps of {config.envs_per_actor} environments has "
        f"{rollout_bytes / 2**20:.0f} MiB, and a message may have {MAX_PAYLOAD_BYTES // 2**20}: "
        f"set rollout_steps to {fitting} or less"
    )


def _rollout_bytes(rows: int, config: RunConfig, spaces: EnvironmentSpaces) -> int:
    observation, action = spaces.observation, spaces.action
    action_bytes = action.wire_dtype.itemsize * math.prod(action.row_shape)
    row_bytes = observation.row_bytes + action_bytes + 4 + 4 + 3  # log-prob, reward, three flags
    state_bytes = 4 * config.network.state_size
    carried_bytes = config.frame_stack * observation.row_bytes + state_bytes + 8  # frames, memory, return
    return rows * row_bytes + config.envs_per_actor * carried_bytes


def _learner_bytes(config: RunConfig, spaces: EnvironmentSpaces, rows: int, batch_bytes: int) -> int:
    network = config.network
    return learner_bytes(
        spaces.observation,
        config.frame_stack,
        network.hidden,
        network.memory_size if network.memory != "none" else 0,
        rows=rows,
        minibatch_rows=config.ppo.minibatch_size,
        batch_bytes=batch_bytes,
    )


def plan(config: RunConfig, spaces: EnvironmentSpaces, *, serial: bool, may_shorten: bool = False) -> RunPlan:
    """Plan a run: in one process if `serial`, else with a fleet. See `derive` for `may_shorten`.

    Raises:
        ConfigurationError: settings that cannot work together, with the number to change.
    """
    derived = derive(config, spaces, serial=serial, may_shorten=may_shorten)
    description = describe_run(config, spaces, derived.rollout_steps)
    if not serial and not config.lock_step and config.vectorization != "sync":
        join = replace(description.join, open_rollouts=open_rollouts_within(config, derived))
        description = replace(description, join=join)
    return RunPlan(config, spaces, derived, description)


def open_rollouts_within(config: RunConfig, derived: Derived) -> int:
    """The number of open rollouts of each actor that the staleness limit allows, at most `open_rollouts`.

    When a rollout is opened, at most backlog_high - 1 unsettled ones and those that all actors have open are
    before it (see `backlog_high`). One is always allowed: an actor has one in lock step, too.
    """
    updates = config.max_staleness + 2 - config.publish_every
    within_limit = derived.rollouts_per_update * updates - derived.backlog_high
    return min(config.open_rollouts, max(1, within_limit // config.actors))


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
