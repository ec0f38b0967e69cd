"""`python -m workers`: an actor. It joins with a Redis URL and a run name, and leaves at any moment."""

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
from dppo_redis.protocol.rollout import MAX_ENVIRONMENTS
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.event_log import History
from dppo_redis.service.logs import configure
from dppo_redis.service.shutdown import StopRequest, run_service
from dppo_redis.store.client import Client, Patience, TransientError, connect, translated
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.weight_store import WeightStore
from workers.build import build_collector
from workers.join import check_environment, refuse_living_holder, wait_for_description
from workers.loop import BEAT_PERIOD_S, Actor, ActorStats, RunAccess
from workers.sampling_rule import ByBacklog, InLockStep, Turn
from workers.watchdog import STOP_GRACE_S, CallClock, Watchdog

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
    history: Path | None = None
    """File to which every event is appended, for checking afterwards; default: none"""


def _serve(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    options = parse_arguments(ActorOptions, argv, "dppo-redis actor")
    if options.slot is not None and options.slot < 0:
        raise ConfigurationError(f"slot: 0 or more (got {options.slot})")
    if options.envs_per_actor is not None and not 1 <= options.envs_per_actor <= MAX_ENVIRONMENTS:
        raise ConfigurationError(f"envs_per_actor: 1 to {MAX_ENVIRONMENTS} (got {options.envs_per_actor})")
    url = find_url(options.redis, Role.ACTOR)
    client = connect(url, f"dppo-actor-{options.run}")
    history = History(options.history, "actor")
    keys = RunKeys(options.run)
    patience = Patience(stop)
    store = RunStore(client, keys)
    description = wait_for_description(store, patience, stop)
    if description is None or patience.call("read control", store.control).state == STOP:
        _log.info("run %s is over", options.run)
        return ExitStatus.DONE
    check_environment(description.spec)
    _check_place(options, description)
    registry = Registry(client, keys)
    if options.slot is not None:
        refuse_living_holder(registry, options.slot, patience, stop)
    slot, boot = patience.call("join", lambda: registry.join(options.slot))
    _log.info("actor %d, boot %d, of run %s", slot, boot, options.run)
    plan = description.join.lock_step
    turn: Turn = ByBacklog(boot) if plan is None else InLockStep(plan)
    calls = CallClock()
    actor = Actor(
        description=description,
        boot_id=secrets.token_hex(8),
        stats=ActorStats(slot, boot),
        turn=turn,
        build_collector=partial(build_collector, description, options.envs_per_actor, slot, calls=calls),
        access=RunAccess(
            RolloutProducer(client, keys, stop, history), WeightStore(client, keys), registry, store
        ),
        patience=patience,
        stop=stop,
        history=history,
    )
    aside = Aside(actor, connect(url, f"dppo-actor-{options.run}"), keys)
    limit_s = description.join.env_timeout_s
    try:
        with Watchdog(calls, limit_s, stop, meanwhile=aside.beat, farewell=aside.leave):
            actor.run()
    except StoppedError as error:
        _log.info("%s", error)
    finally:
        _leave(registry, slot, boot)
    return ExitStatus.DONE


class Aside:
    """What the watchdog's thread does for an actor whose environments take long, by its own connection."""

    def __init__(self, actor: Actor, client: Client, keys: RunKeys) -> None:
        self._actor = actor
        self._registry = Registry(client, keys)
        self._store = RunStore(client, keys)
        self._stopping_since: float | None = None

    def beat(self) -> None:
        """Beat where the actor itself is late; end a push that outlasts a stop."""
        if self._actor.stop.requested:
            self._stopping_since = self._stopping_since or time.monotonic()
            if time.monotonic() - self._stopping_since > STOP_GRACE_S:
                self._actor.access.producer.hang_up()
        if time.monotonic() > self._actor.next_beat + BEAT_PERIOD_S:
            with suppress(TransientError, ConfigurationError), translated():
                self._actor.beat(self._registry)

    def leave(self, reason: str | None) -> None:
        """Report why, and end the registration."""
        stats = self._actor.stats
        if reason is not None:
            with suppress(TransientError, ConfigurationError), translated():
                self._store.append_error(f"actor {stats.slot}", reason)
        _leave(self._registry, stats.slot, stats.boot)


def _check_place(options: ActorOptions, description: RunDescription) -> None:
    """In lock-step mode the fleet is fixed.

    Raises:
        ConfigurationError: this actor has no place in it.
    """
    plan, environments = description.join.lock_step, description.join.envs_per_actor
    if plan is None:
        return
    if options.slot is None or options.slot >= plan.actors:
        raise ConfigurationError(
            f"run {options.run} is in lock-step mode: it takes no more than the {plan.actors} actors it was "
            f"started with; pass --slot 0 to {plan.actors - 1} only to stand in for one that is gone"
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
        _log.info("left without deregistering: %s", error)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("actor")
    return run_service(partial(_serve, argv))


if __name__ == "__main__":
    sys.exit(main())
