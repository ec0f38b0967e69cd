"""The actor, `python -m workers`: it joins a run by Redis URL and run name, and may leave at any moment."""

import logging
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dppo_redis.errors import (
    ConfigurationError,
    ExitStatus,
    StoppedError,
)
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.protocol.rollout import MAX_ENVIRONMENTS
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.ending import closing_within
from dppo_redis.service.event_log import EventLog
from dppo_redis.service.logs import configure
from dppo_redis.service.service_deaths import read_deaths, stopped_status
from dppo_redis.service.shutdown import StopRequest, run_service
from dppo_redis.store.client import Client, RetryLoop, TransientError, connect, translated
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry, SlotHolder
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.weight_store import WeightStore
from workers.build import build_collector
from workers.failures import FailureCount
from workers.join import (
    check_environment_patiently,
    pause_after_deaths,
    refuse_living_holder,
    wait_for_description,
)
from workers.loop import Actor, ActorStats, RunAccess
from workers.sampling_rule import ElasticSampling, LockStepSampling, SamplingRule
from workers.watchdog import STOP_GRACE_S, CallClock, Watchdog

_LATE_S = 0.1  # an actor beats between two rollouts; during a longer one the watchdog beats instead
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


def _serve(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    options = parse_arguments(ActorOptions, argv, "dppo-redis actor")
    if options.slot is not None and options.slot < 0:
        raise ConfigurationError(f"slot: 0 or more (got {options.slot})")
    if options.envs_per_actor is not None and not 1 <= options.envs_per_actor <= MAX_ENVIRONMENTS:
        raise ConfigurationError(f"envs_per_actor: 1 to {MAX_ENVIRONMENTS} (got {options.envs_per_actor})")
    url = find_url(options.redis, Role.ACTOR)
    client = connect(url, f"dppo-actor-{options.run}")
    event_log = EventLog(options.event_log, "actor")
    keys = RunKeys(options.run)
    retry = RetryLoop(stop)
    store = RunStore(client, keys)
    description = wait_for_description(store, retry, stop)
    if description is None:
        return _ended(stop)
    control = retry.call("read control", store.control)
    if control.state == STOP:
        _log.info("run %s is over%s: there is nothing to sample", options.run, _in_brackets(control.reason))
        return _ended(stop)
    _check_place(options, description)
    registry = Registry(client, keys)
    calls, deaths, limit_s = CallClock(), read_deaths(), description.join.env_timeout_s
    name = "actor" if options.slot is None else f"actor {options.slot}"
    report = partial(_report, store, name)
    dead: SlotHolder | None = None
    if options.slot is not None:
        dead = refuse_living_holder(registry, options.slot, retry, stop)
        pause_after_deaths(deaths, partial(_beat, registry, options.slot), report, stop)
    with Watchdog(calls, limit_s, stop, stopped_status=stopped_status(), farewell=report):
        check_environment_patiently(description, options.slot or 0, calls, stop, report)
    if stop.requested:
        return _ended(stop)
    if options.slot is not None:  # building may have taken long
        refuse_living_holder(registry, options.slot, retry, stop, dead)
    slot, boot = retry.call("join", lambda: registry.join(options.slot))
    _log.info("actor %d, boot %d, of run %s", slot, boot, options.run)
    plan = description.join.lock_step
    sampling_rule: SamplingRule = ElasticSampling(boot) if plan is None else LockStepSampling(plan)
    actor = Actor(
        description=description,
        boot_id=secrets.token_hex(8),
        stats=ActorStats(slot, boot, deaths=deaths),
        sampling_rule=sampling_rule,
        build_collector=partial(
            build_collector, description, options.envs_per_actor, slot, calls=calls, chosen={}
        ),
        access=RunAccess(
            RolloutProducer(client, keys, stop, event_log), WeightStore(client, keys), registry, store
        ),
        retry=retry,
        stop=stop,
        failure_count=FailureCount(description.join.env_retry_s),
        event_log=event_log,
    )
    duties = WatchdogDuties(actor, connect(url, f"dppo-actor-{options.run}"), keys)
    try:
        with Watchdog(
            calls,
            limit_s,
            stop,
            stopped_status=stopped_status(),
            meanwhile=duties.beat,
            farewell=duties.leave,
        ):
            actor.run()
        _log_end(actor, store, stop)
    finally:
        _leave(registry, slot, boot)
        with closing_within(status=_ended(stop)):
            actor.close()
    return _ended(stop)


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


def _report(store: RunStore, service: str, text: str | None) -> None:
    """Report a text to the operator, if Redis answers."""
    if text is not None:
        with suppress(TransientError, ConfigurationError), translated():
            store.append_error(service, text)


def _beat(registry: Registry, slot: int, report: ActorReport) -> None:
    """Renew the registration of a slot that waits, if Redis answers."""
    with suppress(TransientError, ConfigurationError), translated():
        registry.beat(slot, report)


class WatchdogDuties:
    """Duties of the watchdog's thread while environments take long, with a connection of its own."""

    def __init__(self, actor: Actor, client: Client, keys: RunKeys) -> None:
        self._actor = actor
        self._registry = Registry(client, keys)
        self._store = RunStore(client, keys)
        self._stopping_since: float | None = None

    def beat(self) -> None:
        """Renew the registration if the actor is late, apply changes, end a push that delays a stop."""
        if self._actor.stop.requested:
            self._stopping_since = self._stopping_since or time.monotonic()
            if time.monotonic() - self._stopping_since > STOP_GRACE_S:
                self._actor.access.producer.hang_up()
        if time.monotonic() > self._actor.next_beat + _LATE_S:
            with suppress(TransientError, ConfigurationError), translated():
                self._actor.beat(self._registry)
                if self._store.control().state == STOP:
                    self._actor.stop.request()
                self._actor.set_rollout_steps(self._store.rollout_steps())

    def leave(self, reason: str | None) -> None:
        """Report the reason, and end the registration."""
        stats = self._actor.stats
        _report(self._store, f"actor {stats.slot}", reason)
        _leave(self._registry, stats.slot, stats.boot)


def _check_place(options: ActorOptions, description: RunDescription) -> None:
    """Check that a lock-step run, whose fleet is fixed, has a place for this actor.

    Raises:
        ConfigurationError: it has none.
    """
    plan, environments = description.join.lock_step, description.join.envs_per_actor
    if plan is None:
        return
    if options.slot is None or options.slot >= plan.actors:
        raise ConfigurationError(
            f"run {options.run} is in lock-step mode: it takes no more than the {plan.actors} actors it was "
            f"started with (set --actors); pass --slot 0 to {plan.actors - 1} only to replace an "
            "actor that has ended"
        )
    if options.envs_per_actor not in (None, environments):
        raise ConfigurationError(
            f"run {options.run} is in lock-step mode with {environments} environments in each actor: "
            "leave out --envs-per-actor"
        )


def _leave(registry: Registry, slot: int, boot: int) -> None:
    try:
        with translated():
            registry.leave(slot, boot)
    except (TransientError, ConfigurationError) as error:
        _log.info("ended without deregistering: %s", error)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("actor")
    return run_service(partial(_serve_until_stopped, argv))


if __name__ == "__main__":
    sys.exit(main())
