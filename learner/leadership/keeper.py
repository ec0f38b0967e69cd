"""The keeper: one thread that keeps a run alive while an update or a save takes long.

Each second: renew the lease, put back missing keys, audit the ledger, write `:status`. It never
ends the process itself; the loop asks `check()`. The first round and the last run in the loop's thread,
before the keeper's own begins and after it was closed. It holds no lock: each step of a round takes the
fence's for itself, so that the loop can publish or settle between two of them.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from dppo_redis.protocol.ledger import LedgerBalance, Outcome
from dppo_redis.protocol.pacing import FleetPacing, Pace, backlog_fresh, valve_bytes, valve_excess
from dppo_redis.protocol.report_fields import from_fields, to_fields
from dppo_redis.protocol.reports import ActorReport, KeeperStatus, LearnerStatus
from dppo_redis.service.logs import RateLimit
from dppo_redis.store.client import TransientError, translated
from dppo_redis.store.error_causes import Recurrence
from dppo_redis.store.fenced_writes import EpochMissingError
from dppo_redis.store.registry import Registry
from learner.health_log import RunWarnings
from learner.leadership.leadership import Leadership
from learner.leadership.missing_actors import MissingActors
from learner.leadership.spare_batch import SpareBatch

PERIOD_S = 1.0
_OLD_S = 30.0  # for which data must be far older than planned before that is said
_log = logging.getLogger("dppo")


class Keeper:
    """Runs beside the loop, from `start` until `close`."""

    def __init__(
        self,
        leadership: Leadership,
        registry: Registry,
        report: Callable[[], LearnerStatus],
        pacing: FleetPacing,
        warnings: RunWarnings | None = None,
        late_share: Callable[[], float] | None = None,
    ) -> None:
        """`late_share` is the share of waiting, of late, by which a spare batch is judged."""
        self._leadership = leadership
        self._registry = registry
        self._report = report  # what the loop reported last
        self._pacing = pacing
        self._warnings = warnings or RunWarnings()
        self._late_share = late_share
        self._roll_call = MissingActors(pacing.planned_actors, time.monotonic())
        self._rollout_steps = pacing.rollout_steps  # as it was last told
        self._old_since: float | None = None  # monotonic, since data are far older than planned
        self._spare_batch = SpareBatch()
        self._actor_wait_share = 0.0  # of the fleet, when it was last seen
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._valve_rarely = RateLimit()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Look once, then go on in the background."""
        with suppress(EpochMissingError):  # wiped since the renewal: the next round takes a new epoch
            self.tick()
        self._thread.start()
        keep_alive, closing = self._leadership.lease.keep_alive, self._closing
        threading.Thread(target=keep_alive, args=(closing,), name="lease", daemon=True).start()

    def check(self) -> None:
        """Raise what ended the keeper: FencedError, ConfigurationError where Redis refuses, or a defect."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the thread; the caller ticks once more for the final numbers."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * PERIOD_S)

    def _run(self) -> None:
        recurrence = Recurrence()
        while not self._closing.wait(PERIOD_S):
            try:
                self.tick()
                recurrence.over()
            except TransientError as error:
                recurrence.log("keep the run's keys", error)
            except EpochMissingError:
                continue  # as at the start
            except Exception as error:  # noqa: BLE001 the end of a thread: the loop raises it
                self._failure = error
                return

    def longest_rollout_s(self) -> float:
        """How long an actor has been sampling its present rollout, or its last; for the loop's thread."""
        reports = (from_fields(ActorReport, fields) for fields in self._registry.living().values())
        return max((report.rollout_s or 0.0 for report in reports), default=0.0)

    def _backlog_limit(self, pace: Pace, actors: int, report: LearnerStatus) -> int:
        """Where actors wait now: below the upper backlog limit while the learner never waits for them."""
        share = report.learner_wait_share if self._late_share is None else self._late_share()
        if self._pacing.max_staleness == 0 or self._spare_batch.wanted(share, report.update):
            return pace.backlog_high
        return backlog_fresh(pace.backlog_high, pace.rollouts_per_update, actors)

    def _tell(self, pace: Pace, actors: int, staleness: float | None) -> None:
        """Say what a fleet of another size or speed than planned means."""
        planned, advice = self._pacing.planned_actors, self._pacing.advice(actors)
        if pace.rollout_steps != self._rollout_steps:
            self._rollout_steps = pace.rollout_steps
            _log.info("%d actors, %d planned: rollouts of %d steps", actors, planned, pace.rollout_steps)
        if advice:
            self._warnings.add("fleet", advice)
        else:
            self._warnings.withdraw("fleet")
        age, now = self._pacing.staleness_advice(actors, staleness), time.monotonic()
        if not age:
            self._old_since = None
            self._warnings.withdraw("age")
            return
        self._old_since = now if self._old_since is None else self._old_since
        if now - self._old_since >= _OLD_S:
            self._warnings.add("age", age)

    def tick(self) -> None:
        """One round of everything."""
        with translated():
            report = self._report()
            self._leadership.publisher.remove_foreign_types()
            self._leadership.lease.renew()
            self._leadership.publisher.heal()
            balance = self._leadership.bookkeeper.audit()
            living = self._registry.end_silent(self._registry.living())
            vanished = self._registry.forget_dead(living)
            reports = {slot: from_fields(ActorReport, fields) for slot, fields in living.items()}
            self._roll_call.look(reports, vanished, time.monotonic())
            actors = max(len(living), self._pacing.planned_actors)  # those that are only starting, too
            pace = self._pacing.pace(actors)
            self._tell(pace, actors, report.staleness_recent)
            high, waits_at = pace.backlog_high, self._backlog_limit(pace, actors, report)
            self._leadership.publisher.write_pace(waits_at, pace.rollout_steps)
            limit = valve_bytes(high, actors, self._pacing.rollout_bytes)
            self._open_valve(valve_excess(balance.backlog, balance.stream_bytes, high, actors, limit), limit)
            own = self._status(
                balance, list(reports.values()), waits_at, limit, is_over=report.state == "finished"
            )
            self._leadership.bookkeeper.write_status(to_fields(report, own))

    def _status(
        self,
        balance: LedgerBalance,
        living: Sequence[ActorReport],
        backlog_high: int,
        valve_limit: int,
        *,
        is_over: bool,
    ) -> KeeperStatus:
        """The part of the status that the loop does not know: the ledger, the leader and the actors."""
        boots = self._leadership.publisher.boots
        if living:
            self._actor_wait_share = sum(actor.wait_share or 0.0 for actor in living) / len(living)
        return KeeperStatus(
            trained=balance.outcomes[Outcome.TRAINED],
            stale=balance.outcomes[Outcome.STALE],
            duplicate=balance.outcomes[Outcome.DUPLICATE],
            refused=balance.outcomes[Outcome.REFUSED],
            lost=balance.outcomes[Outcome.LOST],
            settled_steps=balance.settled_steps,
            epoch=self._leadership.fence.epoch,
            version=self._leadership.publisher.version,
            learner=self._leadership.lease.owner,
            actors=len(living),
            planned_actors=self._pacing.planned_actors,
            missing=() if is_over else self._roll_call.lines(time.monotonic(), boots),
            actor_wait_share=self._actor_wait_share,
            backlog_high=backlog_high,
            rollout_steps=self._rollout_steps,
            entries_added=balance.entries_added,
            backlog=balance.backlog,
            imbalance=balance.imbalance,
            stream_bytes=balance.stream_bytes,
            valve_bytes=valve_limit,
            time=time.time(),
        )

    def _open_valve(self, excess: int, limit: int) -> None:
        """Drop the oldest rollouts where actors ignore the backlog limit."""
        if excess and (trimmed := self._leadership.bookkeeper.trim(excess)) and self._valve_rarely.due():
            _log.error(
                "the stream held more than %d MB: dropped its %d oldest rollouts; check that all actors run "
                "this release and respect the backlog limit",
                limit // 2**20,
                trimmed,
            )
