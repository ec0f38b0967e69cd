"""Duties of the watchdog's thread while the main thread is in a long call of an environment."""

import logging
import time
from contextlib import suppress

from dppo_redis.errors import ConfigurationError
from dppo_redis.store.client import Client, TransientError, translated
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_store import STOP, RunStore
from workers.join import report_error
from workers.loop import Actor
from workers.watchdog import STOP_GRACE_S

# The actor beats between two rollouts. If its beat is late by this much, the watchdog beats instead.
_LATE_S = 0.1
_log = logging.getLogger("dppo")


class WatchdogDuties:
    """Duties of the watchdog's thread while environments take long, with a connection of its own."""

    def __init__(self, actor: Actor, client: Client, keys: RunKeys) -> None:
        self._actor = actor
        self._registry = Registry(client, keys)
        self._store = RunStore(client, keys)
        self._stopping_since: float | None = None

    def beat(self) -> None:
        """Renew the registration if the actor is late, read control, end a push that delays a stop."""
        if self._actor.stop.requested:
            self._stopping_since = self._stopping_since or time.monotonic()
            if time.monotonic() - self._stopping_since > STOP_GRACE_S:
                self._actor.access.producer.hang_up()
        if time.monotonic() > self._actor.next_beat + _LATE_S:
            with suppress(TransientError, ConfigurationError), translated():
                self._actor.beat(self._registry)
                state, rollout_steps = self._store.orders()
                if state == STOP:
                    self._actor.stop.request()
                self._actor.set_rollout_steps(rollout_steps)

    def leave(self, reason: str | None) -> None:
        """Report the reason, and end the registration."""
        stats = self._actor.stats
        report_error(self._store, f"actor {stats.slot}", reason)
        end_registration(self._registry, stats.slot, stats.boot)


def end_registration(registry: Registry, slot: int, boot: int) -> None:
    """End the registration of a slot, if Redis answers."""
    try:
        with translated():
            registry.leave(slot, boot)
    except (TransientError, ConfigurationError) as error:
        _log.info("ended without deregistering: %s", error)
