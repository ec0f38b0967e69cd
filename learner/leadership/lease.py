"""The lease: which learner leads a run, for how long, and as which epoch."""

from collections.abc import Callable

from dppo_redis.errors import FencedError, LeaseHeldError, StoppedError
from dppo_redis.fenced_writes import FencedWrites
from dppo_redis.redis_client import Patience
from dppo_redis.shutdown import StopRequest

LEASE_TTL_S = 5.0
_POLL_S = 0.2


class Lease:
    """One learner's claim to lead a run."""

    def __init__(self, writes: FencedWrites, run: str, owner: str, stop: StopRequest) -> None:
        self._writes = writes
        self._run = run
        self._owner = owner
        self._stop = stop
        self._patience = Patience(stop)

    def take(self, known_epoch: Callable[[], int]) -> int:
        """Wait until it is free or has run out, and take it; returns the new epoch, above the known one.

        Raises:
            LeaseHeldError: a living learner renews it; the message names that one.
        """
        waited_s = 0.0
        while True:
            answer = self._patience.call(
                "take the lease",
                lambda: self._writes.acquire(self._owner, int(1000 * LEASE_TTL_S), 0, known_epoch()),
            )
            if answer.outcome == "acquired":
                return answer.epoch
            if self._stop.requested:
                raise StoppedError("stopped while waiting for the lease")
            if waited_s > LEASE_TTL_S + 1:
                raise LeaseHeldError(
                    f"run {self._run} is led by a living learner, {answer.holder}: "
                    "stop that one, choose another --run, or wait for its end with --standby"
                )
            self._stop.sleep(_POLL_S)
            waited_s += _POLL_S

    def keep(self, epoch: int) -> int | None:
        """Renew it; returns a new epoch where `epoch` was wiped, else None. Redis errors pass through.

        Raises:
            FencedError: another learner leads.
        """
        answer = self._writes.acquire(self._owner, int(1000 * LEASE_TTL_S), epoch, epoch)
        if answer.outcome == "acquired":
            return answer.epoch
        if answer.outcome == "held":
            return None
        raise FencedError(
            f"run {self._run} is led by {answer.holder or 'another learner'} "
            f"(epoch {answer.epoch}, this one had {epoch})"
        )

    def hand_back(self) -> None:
        """If it is still ours. Redis errors pass through."""
        self._writes.release(self._owner)
