"""A run's status, read from the same keys that redis-cli reads."""

import time
from contextlib import suppress

import redis

from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import KeeperStatus, RunStatus
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_store import RunStore


def read_status(client: Client, keys: RunKeys) -> RunStatus:
    """Read a run's status in a few round trips. Redis errors pass through."""
    store = RunStore(client, keys)
    fields = store.status()
    return RunStatus(
        run=keys.run,
        fields=fields,
        control=store.control(),
        ledger=Ledger(store.ledger()),
        evaluation=store.evaluation(),
        actor_fields=Registry(client, keys).living(),
        age_s=_age_s(client, from_fields(KeeperStatus, fields)),
        evaluator=store.evaluator(),
    )


def _age_s(client: Client, written: KeeperStatus) -> float | None:
    """Seconds since a status was written, by one clock where possible: hosts need not agree on the time."""
    if not written.time:
        return None
    now, then = time.time(), written.time
    if written.server_time is not None:
        with suppress(redis.exceptions.NoPermissionError):  # by an access file of an older release
            (seconds, microseconds), then = client.time(), written.server_time
            now = seconds + microseconds / 1e6
    return max(0.0, now - then)
