"""The keeper: a thread that maintains a run's keys, also while an update or a save takes long.

Each second it renews the lease, restores missing keys, audits the ledger and writes `:status`. It never ends
the process: the loop calls `check()`, which raises the keeper's error. The first and the last round run in
the loop's thread, before the keeper's thread begins and after it was closed. A round holds no lock as a
whole: each step takes the fence's lock, so that the loop can publish or settle between two steps.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from dppo_redis.protocol.ledger import LedgerBalance, Outcome
from dppo_redis.protocol.pacing import FleetPacing, Pace, backlog_fresh, valve_bytes, valve_excess
from dppo_redis.protocol.report_fields import from_fields, to_fields
from dppo_redis.protocol.reports import HOLDER, ActorReport, KeeperStatus, LearnerStatus
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
_STALENESS_WARNING_AFTER_S = 30.0  # the keeper warns when data are far older than planned for this long
_ROLLOUT_S = "rollout_s"
# The fields of a registration that a round needs: who it is, and what `missing_actors.py` says.
_READ = (*HOLDER, "wait_share", "deaths", "last_death", "last_error")
_log = logging.getLogger("dppo")


class Keeper:
    """Maintains a run's keys in its own thread, from `start` until `close`."""

    def __init__(
        self,
        leadership: Leadership,
        registry: Registry,
        report: Callable[[], LearnerStatus],
        pacing: FleetPacing,
        warnings: RunWarnings | None = None,
        recent_wait_share: Callable[[], float] | None = None,
    ) -> None:
        """`recent_wait_share` returns the learner's share of waiting, on which the spare batch depends."""
        self._leadership = leadership
        self._registry = registry
        self._report = report  # returns the loop's last report
        self._pacing = pacing
        self._warnings = warnings or RunWarnings()
        self._recent_wait_share = recent_wait_share
        self._missing_actors = MissingActors(pacing.planned_actors, time.monotonic())
        self._rollout_steps = pacing.rollout_steps  # as last written for the actors
        self._too_stale_since: float | None = None  # monotonic; since then data are far older than planned
        self._spare_batch = SpareBatch()
        self._actor_wait_share = 0.0  # mean of the actors that lived last
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._valve_log_limit = RateLimit()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Run one round in this thread, then start the keeper's thread and the lease's."""
        with suppress(EpochMissingError):  # wiped after the renewal: the next round takes a new one
            self.tick()
        self._thread.start()
        keep_alive, closing = self._leadership.lease.keep_alive, self._closing
        threading.Thread(target=keep_alive, args=(closing,), name="lease", daemon=True).start()

    def check(self) -> None:
        """Raise the error that ended the keeper: FencedError, ConfigurationError from Redis, or a bug."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the thread; the caller then calls `tick` once more for the final numbers."""
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
                continue  # as in `start`
            except Exception as error:  # noqa: BLE001 the end of a thread: the loop raises it
                self._failure = error
                return

    def longest_rollout_s(self) -> float:
        """The longest time, in seconds, that a living actor has spent on its present or last rollout."""
        reports = (
            from_fields(ActorReport, fields) for fields in self._registry.living((_ROLLOUT_S,)).values()
        )
        return max((report.rollout_s or 0.0 for report in reports), default=0.0)

    def _backlog_limit(self, pace: Pace, actors: int, report: LearnerStatus) -> int:
        """The backlog at which actors wait: the lower limit while the learner does not wait for rollouts."""
        share = report.learner_wait_share if self._recent_wait_share is None else self._recent_wait_share()
        if self._pacing.max_staleness == 0 or self._spare_batch.wanted(share, report.update):
            return pace.backlog_high
        return backlog_fresh(pace.backlog_high, pace.rollouts_per_update, actors)

    def _warn_about_fleet(self, pace: Pace, actors: int, staleness: float | None) -> None:
        """Log and warn if the fleet has another size or speed than planned."""
        planned, advice = self._pacing.planned_actors, self._pacing.advice(actors)
        if pace.rollout_steps != self._rollout_steps:
            self._rollout_steps = pace.rollout_steps
            _log.info("%d actors, %d planned: rollouts of %d steps", actors, planned, pace.rollout_steps)
        if advice:
            self._warnings.add("fleet", advice)
        else:
            self._warnings.withdraw("fleet")
        text, now = self._pacing.staleness_advice(actors, staleness), time.monotonic()
        if not text:
            self._too_stale_since = None
            self._warnings.withdraw("staleness")
            return
        self._too_stale_since = now if self._too_stale_since is None else self._too_stale_since
        if now - self._too_stale_since >= _STALENESS_WARNING_AFTER_S:
            self._warnings.add("staleness", text)

    def tick(self) -> None:
        """Run one round: renew, restore, audit, pace the actors, write the status."""
        with translated():
            report = self._report()
            self._leadership.publisher.remove_foreign_types()
            self._leadership.lease.renew()
            self._leadership.publisher.heal()
            balance = self._leadership.bookkeeper.audit()
            living = self._registry.end_silent(self._registry.living(_READ))
            vanished = self._registry.forget_dead(living)
            reports = {slot: from_fields(ActorReport, fields) for slot, fields in living.items()}
            self._missing_actors.record(reports, vanished, time.monotonic())
            actors = max(len(living), self._pacing.planned_actors)  # some may be starting
            pace = self._pacing.pace(actors)
            self._warn_about_fleet(pace, actors, report.staleness_recent)
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
        """The keeper's part of the status: the ledger, the leader and the actors."""
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
            missing=() if is_over else self._missing_actors.lines(time.monotonic(), boots),
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
        """Drop the oldest rollouts if actors ignore the backlog limit."""
        if excess and (trimmed := self._leadership.bookkeeper.trim(excess)) and self._valve_log_limit.due():
            _log.error(
                "the stream held more than %d MB: dropped its %d oldest rollouts; check that all actors run "
                "this release and respect the backlog limit",
                limit // 2**20,
                trimmed,
            )
