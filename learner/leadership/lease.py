"""Takes, renews and releases the lease: the learner that holds it leads the run, under one epoch.

The loop's thread takes the lease before the keeper runs, confirms it before a checkpoint gets its name, and
releases it at the end. The keeper renews it each second. The loop also renews it when Redis refuses a write
(`insist`). A renewal holds the fence's lock: a new epoch, its lineage and its weights appear together.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from dppo_redis.errors import ConfigurationError, FencedError, LeaseHeldError, StoppedError
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.service.renewal import HolderReading, HolderState, HolderWatch
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import RetryLoop, TransientError, translated
from dppo_redis.store.error_causes import Recurrence
from dppo_redis.store.fenced_writes import EpochMissingError, LeaseAnswer
from learner.leadership.fence import Fence
from learner.leadership.published_weights import PublishedWeights
from learner.leadership.reserved_versions import ReservedVersions

LEASE_TTL_S = 5.0
_POLL_S = 0.2
_KEEP_S = 1.0
_log = logging.getLogger("dppo")
T = TypeVar("T")


class Lease:
    """One learner's claim to lead a run."""

    def __init__(
        self,
        fence: Fence,
        weights: PublishedWeights,
        reserved: ReservedVersions,
        owner: str,
        stop: StopRequest,
    ) -> None:
        self.owner = owner
        self.lineage = Lineage()  # a frozen value, replaced with each epoch: any thread may read it
        self._fence = fence
        self._weights = weights
        self._reserved = reserved
        self._stop = stop
        self._taking = RetryLoop(stop)
        self._writing = RetryLoop(stop)

    @property
    def recurrence(self) -> Recurrence:
        """Tracks the error of Redis that a write waits for."""
        return self._writing.recurrence

    def restore(self, lineage: Lineage) -> None:
        """Continue from a checkpoint; called before `acquire`."""
        self.lineage = lineage

    def acquire(self, known_epoch: int, update: int) -> None:
        """Take the lease at `update`, with an epoch above those of checkpoint, Redis and run directory.

        Raises:
            LeaseHeldError: a living learner renews its lease; the message names it.
            StoppedError: a stop was requested while another learner held the lease.
        """
        epoch = self._take(lambda: max(known_epoch, self._reserved.read().epoch))
        self._weights.begin(update)
        self._adopt(epoch)

    def renew(self) -> None:
        """Renew the lease. If its epoch was wiped, take a new epoch and publish the weights again under it.

        Raises:
            FencedError: another learner leads.
        """
        with self._fence.lock:  # else the loop would mistake the new epoch for another learner's
            epoch = self._keep(self._fence.epoch)
            if epoch is not None:
                self._adopt(epoch)
                self._weights.republish()

    def keep_alive(self, closing: threading.Event) -> None:
        """Renew the lease while another thread holds the fence's lock; runs in a thread of its own.

        On a slow link a publication takes longer than a lease lasts. This method never changes the epoch.
        """
        while not closing.wait(_KEEP_S):
            if self._fence.lock.acquire(blocking=False):
                self._fence.lock.release()  # the keeper can renew it
                continue
            with suppress(TransientError, ConfigurationError), translated():
                self._fence.writes.keep(self.owner, int(1000 * LEASE_TTL_S), self._fence.epoch)

    def confirm(self) -> None:
        """Check that this learner still leads. While Redis does not answer, no other learner can lead.

        Raises:
            FencedError: another learner leads.
        """
        with suppress(TransientError, EpochMissingError), translated():
            self.renew()

    def insist(self, purpose: str, action: Callable[[], T]) -> T:
        """Repeat `action` under the lock until Redis answers; if the epoch was wiped, renew it first.

        Raises:
            FencedError: another learner leads.
        """

        def locked() -> T:
            with self._fence.lock:
                return action()

        while True:
            try:
                return self._writing.call(purpose, locked)
            except FencedError:  # maybe the epoch was wiped, or is ours and the reply to a renewal was lost
                self._writing.call("renew the lease", self.renew)

    def release(self) -> None:
        """Release the lease, if this learner still holds it, and return the unused versions."""
        self._reserved.give_back(self._weights.version)
        self._fence.writes.release(self.owner)

    def _take(self, known_epoch: Callable[[], int]) -> int:
        """Wait until the lease is free or has expired, and take it; returns an epoch above the known one."""
        watch, waited_s, stood_still = HolderWatch(LEASE_TTL_S), 0.0, b""
        while True:
            answer = self._taking.call(
                "take the lease", partial(self._ask, 0, known_epoch(), stood_still=stood_still)
            )
            if answer.outcome == "acquired":
                return answer.epoch
            if self._stop.requested:
                raise StoppedError("stopped while waiting for the lease")
            judged = watch.judge(HolderReading(answer.holder, beat=answer.beat), waited_s)
            stood_still = answer.value if judged is HolderState.ENDED else b""
            if judged is HolderState.RENEWED:
                raise LeaseHeldError(
                    f"run {self._fence.keys.run} is led by a living learner, {answer.holder}: "
                    "stop that one, choose another --run, or wait for its end with --standby"
                )
            self._stop.sleep(_POLL_S)
            waited_s += _POLL_S

    def _keep(self, epoch: int) -> int | None:
        """Renew the lease; returns a new epoch if `epoch` was wiped, else None. Does not retry."""
        answer = self._ask(epoch, epoch)
        if answer.outcome == "acquired":
            return answer.epoch
        if answer.outcome == "held":
            return None
        raise FencedError(
            f"run {self._fence.keys.run} is led by {answer.holder or 'another learner'} "
            f"(epoch {answer.epoch}, this one had {epoch})"
        )

    def _ask(self, epoch: int, floor: int, stood_still: bytes = b"") -> LeaseAnswer:
        return self._fence.writes.acquire(self.owner, int(1000 * LEASE_TTL_S), epoch, floor, stood_still)

    def _adopt(self, epoch: int) -> None:
        update = self._weights.update
        self._fence.epoch = epoch
        self.lineage = self.lineage.begin(epoch, update)
        _log.info("leading run %s as epoch %d at update %d", self._fence.keys.run, epoch, update)
        self._fence.event_log.write("acquired", epoch=epoch, update=update, lineage=self.lineage.starts)
