"""Everything the learner writes to Redis: one lock, one fencing token, one set of books.

The loop publishes and settles; the keeper renews, heals and audits. Both go through here, so that
what is healed is always what was last written, and no count is taken in the middle of a settle.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TypeVar

from dppo_redis.errors import FencedError
from dppo_redis.fenced_writes import EpochMissingError, FencedWrites
from dppo_redis.history import NO_HISTORY, History, arrays_digest
from dppo_redis.keys import RunKeys
from dppo_redis.ledger import Balance, Books, Ledger, Outcome, Settlement
from dppo_redis.redis_client import Client, Patience, TransientError, translated
from dppo_redis.rollout_stream import ensure_group
from dppo_redis.run_store import (
    RUN,
    STOP,
    read_counters,
    read_vitals,
    remove_foreign_types,
)
from dppo_redis.shutdown import StopRequest
from dppo_redis.spaces import FloatArray
from dppo_redis.spec import RunDescription
from dppo_redis.weights import Weights
from learner.leadership.lease import Lease
from learner.leadership.reserved_versions import ReservedVersions
from learner.leadership.weights_watch import WeightsWatch
from learner.staleness import Lineage

_TRIMMED_AT_ONCE = 100
_log = logging.getLogger("dppo")
T = TypeVar("T")


class Authority:
    """The right to write a run's keys, and what was last written to them."""

    def __init__(
        self,
        client: Client,
        keys: RunKeys,
        description: RunDescription,
        owner: str,
        stop: StopRequest,
        history: History = NO_HISTORY,
        used: ReservedVersions | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._writes = FencedWrites(client, keys)
        self._lock = threading.RLock()
        self._lease = Lease(self._writes, keys.run, owner, stop)
        self._patience = Patience(stop)
        self._description = description
        self.history = history
        self._used = used or ReservedVersions()
        self.boots: dict[str, int] = {}
        self._last: Weights | None = None
        self._weights_watch = WeightsWatch(client, keys)
        self._state = RUN  # what the operator wanted when it was last seen
        self.owner = owner
        self.epoch = 0
        self.version = 0
        self._update = 0  # of the weights published last: no rollout of this epoch is beyond it
        self.lineage = Lineage()
        self.books = Books(Ledger())
        self._is_settling = False
        self._doubtful = count()  # entries whose trim was not confirmed
        self.streams_made = 0  # what an older one held after the last audit was never counted

    # Taking and handing back the lease

    def restore(self, version: int, lineage: Lineage, books: Books, boots: Mapping[str, int]) -> None:
        """Go on from a checkpoint; called before `acquire`."""
        self.version = version
        self.lineage = lineage
        self.books = books
        self.boots = dict(boots)

    def acquire(self, known_epoch: int, update: int) -> None:
        """Take the lease at `update`, above all that checkpoint, Redis or directory know to be used.

        Raises:
            LeaseHeldError: a living learner renews its lease; the message names it.
        """
        epoch = self._lease.take(lambda: max(known_epoch, self._used.read().epoch))
        self._update = update
        self.version = max(self.version, self._used.read().version)
        self._adopt(epoch)

    def renew(self) -> None:
        """Keep the lease; takes a new epoch where the old one was wiped.

        Raises:
            FencedError: another learner leads.
        """
        with self._lock:  # or the loop would take the new epoch for another learner's
            epoch = self._lease.keep(self.epoch)
            if epoch is not None:
                self._adopt(epoch)
                self._republish()

    def confirm(self) -> None:
        """Ask whether this learner still leads; where Redis does not answer nobody else can.

        Raises:
            FencedError: another learner leads.
        """
        with suppress(TransientError, EpochMissingError), translated():
            self.renew()

    def _adopt(self, epoch: int) -> None:
        self.epoch = epoch
        self.lineage = self.lineage.begin(epoch, self._update)
        _log.info("leading run %s as epoch %d at update %d", self._keys.run, epoch, self._update)
        self.history.write("acquired", epoch=epoch, update=self._update, lineage=self.lineage.starts)

    def release(self) -> None:
        """Hand the lease back, if it is still ours."""
        self._used.give_back(self.version)
        self._lease.hand_back()

    # What the loop writes

    def announce(self) -> None:
        """Write the spec and what else is missing, before there are weights to go with it."""
        self._insist("publish the spec", self.heal)

    def publish(self, arrays: dict[str, FloatArray], update: int, trained_steps: int, env_steps: int) -> None:
        """Publish weights under the next version."""

        def attempt() -> None:
            weights = Weights(
                epoch=self.epoch,
                version=self.version + 1,
                update=update,
                trained_steps=trained_steps,
                env_steps=env_steps,
                spec=self._description.digest,
                arrays=arrays,
            )
            self._publish(weights)

        self._insist("publish weights", attempt)

    def _publish(self, weights: Weights) -> None:
        stored = self._try_publish(weights)
        if stored is not None:  # a version above ours, of a lost or restored past: go above it
            weights = replace(weights, version=stored + 1)
            self._try_publish(weights)
        self.version = weights.version
        self._update = weights.update
        self._last = weights

    def _try_publish(self, weights: Weights) -> int | None:
        identity = {"epoch": weights.epoch, "version": weights.version}
        self._used.cover(**identity)
        if self.history.is_on:
            digest = arrays_digest(weights.arrays)
            self.history.write("publishing", **identity, update=weights.update, digest=digest)
        try:
            stored = self._writes.publish(weights)
        except FencedError:
            self.history.write("refused", **identity)
            raise
        self.history.write("published" if stored is None else "refused", **identity)
        return stored

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Record final outcomes; one that was already recorded, or whose entry is gone, adds nothing."""

        def attempt() -> None:
            try:
                with translated():
                    counted = self._writes.settle(self.epoch, settlements)
            except TransientError:
                self.books.doubts.update({s.entry_id: s for s in settlements})
                raise
            for settlement, counts in zip(settlements, counted, strict=True):
                if counts:
                    self.books.ledger.add(settlement.outcome, settlement.reason, settlement.steps)
                    self.books.doubts.pop(settlement.entry_id, None)
            self.history.write(
                "settled",
                entries=[(s.entry_id, s.outcome, n) for s, n in zip(settlements, counted, strict=True)],
            )

        if settlements:
            self._is_settling = True
            try:
                self._insist("settle rollouts", attempt)
            finally:
                self._is_settling = False

    @property
    def env_steps(self) -> int:
        """Valid steps of all settled rollouts, whatever their outcome."""
        with self._lock:
            return self.books.ledger.env_steps

    def restore_stream(self) -> None:
        """Make stream and group again where they are missing."""
        with self._lock:
            if ensure_group(self._client, self._keys):
                self.books.stream_is_new = True
                self.streams_made += 1

    def _insist(self, what: str, action: Callable[[], T]) -> T:
        """Repeat `action`, under the lock, while Redis is away; renews an epoch that was wiped."""

        def locked() -> T:
            with self._lock:
                return action()

        while True:
            try:
                return self._patience.call(what, locked)
            except FencedError:  # or the epoch was wiped, or is ours: the reply to a renewal was lost
                self._patience.call("renew the lease", self.renew)

    # What the keeper writes

    def audit(self) -> Balance:
        """Compare the stream's counters with the ledger; book what vanished; restore what was lost."""
        with self._lock:
            counters = read_counters(self._client, self._keys)
            if not self.books.adopt(counters.ledger, counters.entries_added, counters.backlog):
                _log.warning("somebody else wrote into the ledger; its counts are put right from memory")
            if not self._is_settling:
                self.books.doubts.clear()
            balance = self.books.audit(counters.entries_added, counters.backlog)
            if balance.imbalance:
                self.history.write("booked", imbalance=balance.imbalance)
            if self.books.ledger.counts != counters.ledger:
                self._writes.write_hash(self.epoch, self._keys.ledger, self.books.ledger.counts)
            self.restore_stream()
            return replace(balance, stream_bytes=counters.stream_bytes)

    def trim(self, excess: int) -> int:
        """Drop the oldest rollouts that nobody has read yet, and count them as lost."""
        trimmed = 0
        while trimmed < excess:
            with self._lock:  # a few at a time: the server answers nobody else meanwhile
                some = self._trim(min(_TRIMMED_AT_ONCE, excess - trimmed))
            trimmed += some
            if some < _TRIMMED_AT_ONCE:
                break
        return trimmed

    def _trim(self, most: int) -> int:
        self.history.write("trimming", entries=most)
        try:
            with translated():
                trimmed = self._writes.trim(self.epoch, most)
        except TransientError:
            doubt = Settlement(b"", Outcome.LOST, "valve")
            self.books.doubts.update({b"valve-%d" % next(self._doubtful): doubt for _ in range(most)})
            raise
        self.history.write("trimmed", entries=trimmed)
        if trimmed:
            self.books.ledger.add(Outcome.LOST, "valve", entries=trimmed)
        return trimmed

    def remove_foreign_types(self) -> None:
        """Remove keys that somebody overwrote with another type, so that they can be put back."""
        for key in remove_foreign_types(self._client, self._keys):
            _log.warning("removed %s: it was overwritten with another type", key)

    def heal(self) -> None:
        """Put back keys that were deleted, damaged or overwritten."""
        with self._lock:
            vitals = read_vitals(self._client, self._keys)
            if self._last is not None and not self._weights_watch.is_whole(vitals, self._last):
                _log.warning("the weights key does not hold what was published; publishing again")
                self._republish()
            text = self._description.to_text()
            if vitals.spec != text:
                self._writes.write_string(self.epoch, self._keys.spec, text)
            self._heal_boots(vitals.boots)
            if vitals.state is None:
                self._writes.write_fields(self.epoch, self._keys.control, {"state": self._state})
            self._state = vitals.state or self._state

    def _republish(self) -> None:
        if self._last is not None:
            self._publish(replace(self._last, epoch=self.epoch, version=self.version + 1))

    def _heal_boots(self, stored: Mapping[str, int]) -> None:
        """Boot numbers never fall, or a restarted actor would play old episodes again."""
        merged = {name: max(stored.get(name, 0), self.boots.get(name, 0)) for name in {*stored, *self.boots}}
        fallen = {name: boot for name, boot in merged.items() if boot != stored.get(name)}
        if fallen:  # only these: an actor may be counting up another one now
            self._writes.write_fields(self.epoch, self._keys.boots, fallen)
        self.boots = merged

    def write_backlog_high(self, high: int) -> None:
        """Where actors wait."""
        with self._lock:
            self._writes.write_fields(self.epoch, self._keys.control, {"backlog_high": high})

    def end_run(self, reason: str, target_step: int | None) -> None:
        """Ask the whole fleet to stop; works on a full server, too."""
        step = "" if target_step is None else target_step
        fields = {"state": STOP, "reason": reason, "target_step": step}
        self._insist("end the run", lambda: self._writes.write_fields(self.epoch, self._keys.control, fields))

    def write_status(self, fields: Mapping[str, str | int | float]) -> None:
        """Replace the status hash."""
        with self._lock:
            self._writes.write_hash(self.epoch, self._keys.status, fields)
