"""Keeps a run's ledger in memory and in Redis; settles rollouts, audits and trims the stream.

The loop's thread settles, and a settle waits for Redis. The keeper's thread audits, trims and writes the
status; an error of Redis ends its round. Both restore a lost stream: the loop when a read finds none, the
keeper in an audit. Each holds the fence's lock, so that no audit counts in the middle of a settle.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from dppo_redis.protocol.ledger import Ledger, LedgerAudit, LedgerBalance, Outcome, Settlement
from dppo_redis.protocol.reports import SERVER_TIME
from dppo_redis.store.client import TransientError, translated
from dppo_redis.store.rollout_stream import ensure_group
from dppo_redis.store.run_store import read_counters
from learner.leadership.fence import Fence
from learner.leadership.lease import Lease

_TRIMMED_AT_ONCE = 100
_log = logging.getLogger("dppo")


class Bookkeeper:
    """Records exactly one outcome for every rollout."""

    def __init__(self, fence: Fence, lease: Lease) -> None:
        self.ledger_audit = LedgerAudit(Ledger())
        self.streams_made = 0  # entries that a lost stream got after the last audit were never counted
        self._fence = fence
        self._lease = lease
        self._is_settling = False  # stays True between two attempts, when the lock is free
        self._doubtful = count()  # numbers the entries whose trim Redis did not confirm

    def restore(self, ledger_audit: LedgerAudit) -> None:
        """Continue from a checkpoint; called before the lease is taken."""
        self.ledger_audit = ledger_audit

    @property
    def settled_steps(self) -> int:
        """Valid steps of all settled rollouts of every outcome."""
        with self._fence.lock:
            return self.ledger_audit.ledger.settled_steps

    # From the loop's thread

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Record final outcomes. An entry that is already settled, or gone, adds nothing."""
        if settlements:
            self._is_settling = True
            try:
                self._lease.insist("settle rollouts", lambda: self._settle(settlements))
            finally:
                self._is_settling = False

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        try:
            with translated():
                counted = self._fence.writes.settle(self._fence.epoch, settlements)
        except TransientError:
            self.ledger_audit.doubts.update({s.entry_id: s for s in settlements})
            raise
        for settlement, counts in zip(settlements, counted, strict=True):
            if counts:
                self.ledger_audit.ledger.add(settlement.outcome, settlement.reason, settlement.steps)
                self.ledger_audit.doubts.pop(settlement.entry_id, None)
        self._fence.event_log.write(
            "settled",
            entries=[(s.entry_id, s.outcome, n) for s, n in zip(settlements, counted, strict=True)],
        )

    # From both threads

    def restore_stream(self) -> None:
        """Create the stream and its consumer group where they are missing."""
        with self._fence.lock:
            if ensure_group(self._fence.client, self._fence.keys):
                self.ledger_audit.stream_is_new = True
                self.streams_made += 1

    # From the keeper's thread

    def audit(self) -> LedgerBalance:
        """Compare the stream's counters with the ledger; count missing rollouts; restore lost counts."""
        fence = self._fence
        with fence.lock:
            counters = read_counters(fence.client, fence.keys)
            if not self.ledger_audit.adopt(counters.ledger, counters.entries_added, counters.backlog):
                _log.warning(
                    "another program wrote into the ledger; the learner restores the counts from its memory"
                )
            if not self._is_settling:
                self.ledger_audit.doubts.clear()
            balance = self.ledger_audit.audit(counters.entries_added, counters.backlog)
            if balance.imbalance:
                fence.event_log.write("booked", imbalance=balance.imbalance)
            if self.ledger_audit.ledger.counts != counters.ledger:
                fence.writes.write_hash(fence.epoch, fence.keys.ledger, self.ledger_audit.ledger.counts)
            self.restore_stream()
            return replace(balance, stream_bytes=counters.stream_bytes)

    def trim(self, excess: int) -> int:
        """Drop up to `excess` of the oldest rollouts that no learner has read, and count them as lost.

        Returns how many were dropped.
        """
        trimmed = 0
        while trimmed < excess:
            with self._fence.lock:  # in small portions: the server blocks while it trims
                some = self._trim(min(_TRIMMED_AT_ONCE, excess - trimmed))
            trimmed += some
            if some < _TRIMMED_AT_ONCE:
                break
        return trimmed

    def _trim(self, most: int) -> int:
        self._fence.event_log.write("trimming", entries=most)
        try:
            with translated():
                trimmed = self._fence.writes.trim(self._fence.epoch, most)
        except TransientError:
            doubt = Settlement(b"", Outcome.LOST, "valve")
            self.ledger_audit.doubts.update({b"valve-%d" % next(self._doubtful): doubt for _ in range(most)})
            raise
        self._fence.event_log.write("trimmed", entries=trimmed)
        if trimmed:
            self.ledger_audit.ledger.add(Outcome.LOST, "valve", entries=trimmed)
        return trimmed

    def write_status(self, fields: Mapping[str, str | int | float]) -> None:
        """Replace the status hash."""
        with self._fence.lock:
            self._fence.writes.write_dated(self._fence.epoch, self._fence.keys.status, fields, SERVER_TIME)
