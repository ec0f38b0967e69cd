"""The actor, `python -m workers`: it joins a run by Redis URL and run name, and may leave at any moment."""

import logging
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dppo_redis.errors import ConfigurationError, ExitStatus, StoppedError
from dppo_redis.protocol.rollout import MAX_ENVIRONMENTS
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.ending import closing_within
from dppo_redis.service.event_log import EventLog
from dppo_redis.service.logs import configure
from dppo_redis.service.service_deaths import Deaths, read_deaths, stopped_status
from dppo_redis.service.shutdown import StopRequest, run_service
from dppo_redis.store.client import TransientError, translated
from dppo_redis.store.registry import SlotHolder
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.sharing.shared_weights import SharedWeights
from dppo_redis.store.weight_store import WeightStore
from workers.build import build_collector
from workers.failures import FailureCount
from workers.join import (
    RunConnection,
    check_environment_patiently,
    check_place,
    pause_after_deaths,
    refuse_living_holder,
    wait_for_description,
)
from workers.loop import Actor, RunAccess
from workers.sampling.actor_stats import ActorStats
from workers.sampling_rule import ElasticSampling, LockStepSampling, SamplingRule
from workers.watchdog import CallClock, Watchdog
from workers.watchdog_duties import WatchdogDuties, end_registration

_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class ActorOptions:
    """Sample environments for a run; needs only its Redis URL and name."""

    run: str
    """Name of the run to join"""
    redis: str | None = None
    """Redis URL; default: the environment variable DPPO_REDIS_URL"""
    envs_per_actor: int | None = None
    """Environments stepped together; default: what the run plans"""
    slot: int | None = None
    """Number of this actor in the fleet; default: the next free one"""
    event_log: Path | None = None
    """File to which every event is appended, for checking afterwards; default: none"""


def _read_options(argv: Sequence[str] | None) -> ActorOptions:
    options = parse_arguments(ActorOptions, argv, "dppo-redis actor")
    if options.slot is not None and options.slot < 0:
        raise ConfigurationError(f"slot: 0 or more (got {options.slot})")
    if options.envs_per_actor is not None and not 1 <= options.envs_per_actor <= MAX_ENVIRONMENTS:
        raise ConfigurationError(f"envs_per_actor: 1 to {MAX_ENVIRONMENTS} (got {options.envs_per_actor})")
    return options


def _serve(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    options = _read_options(argv)
    run = RunConnection.open(options.redis, options.run, stop)
    event_log = EventLog(options.event_log, "actor")
    description = wait_for_description(run.store, run.retry, stop)
    if description is None or _is_over(run):
        return _ended(stop)
    check_place(options.run, options.slot, options.envs_per_actor, description)
    calls, deaths = CallClock(), read_deaths()
    registration = _take_slot(run, options.slot, description, calls, deaths)
    if registration is None:
        return _ended(stop)
    slot, boot = registration
    _log.info("actor %d, boot %d, of run %s", slot, boot, options.run)
    event_log.write("joined", actor=slot)
    stats = ActorStats(slot, boot, deaths=deaths)
    with closing(
        SharedWeights(WeightStore(run.client, run.keys), f"{run.url} {options.run}", stop)
    ) as weights:
        actor = _build_actor(run, weights, description, stats, calls, options.envs_per_actor, event_log)
        _sample(actor, run, calls)
    return _ended(stop)


def _is_over(run: RunConnection) -> bool:
    """Whether the run has ended, which is logged."""
    control = run.retry.call("read control", run.store.control)
    if control.state == STOP:
        reason = _in_brackets(control.reason)
        _log.info("run %s is over%s: there is nothing to sample", run.keys.run, reason)
    return control.state == STOP


def _take_slot(
    run: RunConnection, slot: int | None, description: RunDescription, calls: CallClock, deaths: Deaths
) -> tuple[int, int] | None:
    """Check environment and slot, and register: returns slot and boot, None if a stop was requested.

    Raises:
        ConfigurationError: the environment is not the run's, or the slot belongs to a living actor.
        EnvironmentBrokenError: the environment could not be built.
        TooManyDeathsError: too many processes of this slot failed in a row.
    """
    report = partial(run.report, slot)
    dead: SlotHolder | None = None
    if slot is not None:
        dead = refuse_living_holder(run.registry, slot, run.retry, run.stop)
        pause_after_deaths(deaths, partial(run.beat, slot), report, run.stop)
    limit_s = description.join.env_timeout_s
    with Watchdog(calls, limit_s, run.stop, stopped_status=stopped_status(), farewell=report):
        check_environment_patiently(description, slot or 0, calls, run.stop, report)
    if run.stop.requested:
        return None
    if slot is not None:  # building may have taken long
        refuse_living_holder(run.registry, slot, run.retry, run.stop, dead)
    return run.retry.call("join", lambda: run.registry.join(slot))


def _build_actor(
    run: RunConnection,
    weights: SharedWeights,
    description: RunDescription,
    stats: ActorStats,
    calls: CallClock,
    envs_per_actor: int | None,
    event_log: EventLog,
) -> Actor:
    plan = description.join.lock_step
    sampling_rule: SamplingRule = ElasticSampling(stats.boot) if plan is None else LockStepSampling(plan)
    return Actor(
        description=description,
        boot_id=secrets.token_hex(8),
        stats=stats,
        sampling_rule=sampling_rule,
        build_collector=partial(
            build_collector, description, envs_per_actor, stats.slot, calls=calls, chosen={}
        ),
        access=RunAccess(
            RolloutProducer(run.client, run.keys, run.stop, event_log),
            weights,
            run.registry,
            run.store,
        ),
        retry=run.retry,
        stop=run.stop,
        failure_count=FailureCount(description.join.env_retry_s),
        event_log=event_log,
    )


def _sample(actor: Actor, run: RunConnection, calls: CallClock) -> None:
    """Let the actor sample until the run ends or a stop is requested, then deregister and close it."""
    duties = WatchdogDuties(actor, run.connect_again(), run.keys)
    watchdog = Watchdog(
        calls,
        actor.description.join.env_timeout_s,
        run.stop,
        stopped_status=stopped_status(),
        meanwhile=duties.beat,
        farewell=duties.leave,
    )
    try:
        with watchdog:
            actor.run()
        _log_end(actor, run.store, run.stop)
    finally:
        end_registration(run.registry, actor.stats.slot, actor.stats.boot)
        with closing_within(status=_ended(run.stop)):
            actor.close()


def _serve_until_stopped(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    try:
        return _serve(argv, stop)
    except StoppedError as error:
        _log.info("%s", error)
        return _ended(stop)


def _ended(stop: StopRequest) -> ExitStatus:
    return stopped_status(stop.signal is not None)


def _log_end(actor: Actor, store: RunStore, stop: StopRequest) -> None:
    """Log why this actor leaves, and what it has done."""
    why = "it was asked to stop" if stop.signal is None else f"it was stopped by {stop.signal.name}"
    if stop.signal is None:
        with suppress(TransientError, ConfigurationError), translated():
            why = f"the run has ended{_in_brackets(store.control().reason)}"
    stats = actor.stats
    _log.info(
        "actor %d leaves: %s; pushed %s rollouts, %s steps",
        stats.slot,
        why,
        f"{stats.pushes:,}",
        f"{stats.steps:,}",
    )


def _in_brackets(reason: str) -> str:
    return f" ({reason})" if reason else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("actor")
    return run_service(partial(_serve_until_stopped, argv))


if __name__ == "__main__":
    sys.exit(main())
