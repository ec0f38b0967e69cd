"""A run's status, read from the same keys that redis-cli reads."""

import time

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
    written = from_fields(KeeperStatus, fields).time
    return RunStatus(
        run=keys.run,
        fields=fields,
        control=store.control(),
        ledger=Ledger(store.ledger()),
        evaluation=store.evaluation(),
        actor_fields=Registry(client, keys).living(),
        age_s=max(0.0, time.time() - written) if written else None,
        evaluator=store.evaluator(),
    )
