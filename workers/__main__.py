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

from dppo_redis.arguments import parse_arguments
from dppo_redis.credentials import Role, find_url
from dppo_redis.environments import inspect, make_vector
from dppo_redis.errors import (
    ConfigurationError,
    DamagedSpecError,
    EnvironmentBrokenError,
    ExitStatus,
    StoppedError,
)
from dppo_redis.history import History
from dppo_redis.keys import RunKeys
from dppo_redis.logs import Rarely, configure
from dppo_redis.redis_client import Client, Patience, TransientError, connect, translated
from dppo_redis.registry import Registry
from dppo_redis.renewal import Look, living_holder
from dppo_redis.rollout import MAX_ENVIRONMENTS
from dppo_redis.rollout_stream import RolloutProducer
from dppo_redis.run_store import STOP, RunStore
from dppo_redis.shutdown import StopRequest, run_service
from dppo_redis.spec import RunDescription, Spec
from dppo_redis.weight_store import WeightStore
from workers.collect import Collector
from workers.envs import Environments
from workers.loop import BEAT_PERIOD_S, Actor, ActorStats
from workers.seeding import actor_seeds
from workers.turn import ByBacklog, InLockStep, Turn
from workers.watchdog import CALLS, Watchdog

_LOOKS_AT_A_DAMAGED_SPEC = 15  # three seconds
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


def wait_for_description(store: RunStore, patience: Patience, stop: StopRequest) -> RunDescription | None:
    """What the run's learner published; waits until there is one, None when the run is over.

    Raises:
        ConfigurationError: the run speaks another release's wire schema, or nobody mends its spec.
    """
    rarely, damaged = Rarely(), 0
    while not stop.requested:
        try:
            description = patience.call("read the spec", store.description)
        except DamagedSpecError:
            description, damaged = None, damaged + 1
            if damaged == _LOOKS_AT_A_DAMAGED_SPEC:
                raise
        if description is not None:
            return description
        if rarely.due():
            _log.info("waiting for the learner of run %s", store.keys.run)
        stop.sleep(0.2)
    return None


def check_environment(spec: Spec) -> None:
    """Compare this machine's environment with the run's spec.

    Raises:
        ConfigurationError: they differ; the message says in what.
    """
    spaces = inspect(spec.environment, use_mask=spec.observation.masked)
    mine = Spec(**{**vars(spec), "observation": spaces.observation, "action": spaces.action})
    differences = mine.differences(spec)
    if differences:
        raise ConfigurationError(
            f"{spec.environment.env_id} here is not the run's environment ({'; '.join(differences)}): "
            "install the same versions as the learner's machine"
        )


def refuse_living_holder(registry: Registry, slot: int, patience: Patience, stop: StopRequest) -> None:
    """A registration that is renewed while we look belongs to a living actor; a dead one's may be taken.

    Raises:
        ConfigurationError: naming the holder.
    """

    def look() -> Look:
        holder = patience.call("look at the slot", lambda: registry.holder(slot))
        if holder is None:
            return Look(None)
        return Look(f"{holder.host}:{holder.pid}", beat=holder, is_dead=holder.is_dead)

    living = living_holder(look, 2.5 * BEAT_PERIOD_S, stop)
    if living:
        raise ConfigurationError(
            f"slot {slot} belongs to a living actor, {living}: stop that one, or leave out --slot"
        )


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
    actor = Actor(
        description=description,
        boot_id=secrets.token_hex(8),
        stats=ActorStats(slot, boot),
        turn=turn,
        build_collector=partial(build_collector, description, options.envs_per_actor, slot),
        producer=RolloutProducer(client, keys, stop, history),
        weights=WeightStore(client, keys),
        registry=registry,
        store=store,
        patience=patience,
        stop=stop,
        history=history,
    )
    aside = Aside(actor, connect(url, f"dppo-actor-{options.run}"), keys)
    limit_s = description.join.env_timeout_s
    try:
        with Watchdog(limit_s, stop, meanwhile=aside.beat, farewell=aside.leave):
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

    def beat(self) -> None:
        """Beat where the actor itself is late."""
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


def build_collector(
    description: RunDescription, envs_per_actor: int | None, slot: int, boot: int, builds: int
) -> Collector:
    """Environments and buffers; rebuilt environments play other episodes than the broken ones."""
    spec, join = description.spec, description.join
    count = envs_per_actor or join.envs_per_actor
    seeds = actor_seeds(join.seed, slot, boot, count, builds)
    CALLS.start()  # building may hang, too; the first reset stops the clock
    try:
        vector = make_vector(spec.environment, count, join.vectorization, masked=spec.observation.masked)
    except ConfigurationError as error:  # it could be made when it was looked at: this may pass
        raise EnvironmentBrokenError(str(error)) from error
    environments = Environments(vector, seeds.environments)
    try:
        return Collector(environments, spec, seeds)
    except EnvironmentBrokenError:
        environments.close()
        raise


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
