"""Reads a run's status, from the same keys that an operator reads with redis-cli."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import redis

from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.report_fields import from_fields, names
from dppo_redis.protocol.reports import (
    ActorReport,
    Control,
    Evaluation,
    EvaluatorReport,
    KeeperStatus,
    LearnerStatus,
    LedgerSummary,
)
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_store import RunStore


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment, as an operator sees it."""

    run: str
    fields: Mapping[str, str]  # of the status hash, as they are stored
    control: Control
    ledger: Ledger
    evaluation: Evaluation | None  # the newest complete one
    actor_fields: Mapping[int, Mapping[str, str]]  # of the living actors by slot, as they are stored
    age_s: float | None  # of the status hash; None if there is none
    evaluator: EvaluatorReport = field(default_factory=EvaluatorReport)

    @cached_property
    def learner(self) -> LearnerStatus:
        """The report of the learner's loop."""
        return from_fields(LearnerStatus, self.fields)

    @cached_property
    def keeper(self) -> KeeperStatus:
        """The report of the learner's keeper."""
        return from_fields(KeeperStatus, self.fields)

    @cached_property
    def actors(self) -> dict[int, ActorReport]:
        """The reports of the living actors, by slot."""
        return {slot: from_fields(ActorReport, report) for slot, report in self.actor_fields.items()}

    @property
    def ledger_summary(self) -> LedgerSummary:
        """The ledger's counts, all read at one moment, so that they add up."""
        return LedgerSummary(**{name: getattr(self.keeper, name) for name in names(LedgerSummary)})


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
    """Seconds since a status was written, by the server's clock if possible: clocks of hosts may differ."""
    if not written.time:
        return None
    now, then = time.time(), written.time
    if written.server_time is not None:
        with suppress(redis.exceptions.NoPermissionError):  # with an access file of an older release
            (seconds, microseconds), then = client.time(), written.server_time
            now = seconds + microseconds / 1e6
    return max(0.0, now - then)
