"""How a learner process comes to lead a run: at once, or after its predecessor."""

import logging
from collections.abc import Callable

from dppo_redis.errors import LeaseHeldError, StoppedError
from dppo_redis.logs import Rarely
from dppo_redis.redis_client import Patience
from dppo_redis.run_store import STOP, RunStore
from dppo_redis.shutdown import StopRequest
from learner.authority import Authority
from learner.checkpoint import Checkpoints, Snapshot
from learner.ppo_update import PpoUpdate

_POLL_S = 0.2
_LOOKS = 15  # without a holder: a living leader puts a lease that was wiped back within two seconds
_log = logging.getLogger("dppo")


def stand_by(store: RunStore, patience: Patience, stop: StopRequest) -> None:
    """Wait until nobody leads for 3 s: a predecessor has handed its lease back, or let it run out.

    Raises:
        StoppedError: the run is over, or a stop was requested.
    """
    rarely = Rarely(interval_s=60.0)
    vacant = 0  # looks in a row
    while True:
        if patience.call("read control", store.control).state == STOP:
            raise StoppedError(f"run {store.keys.run} is over")
        holder = patience.call("look at the lease", store.leader)
        vacant = 0 if holder else vacant + 1
        if vacant == _LOOKS:
            return
        if holder and rarely.due():
            _log.info("standing by: run %s is led by %s", store.keys.run, holder)
        stop.sleep(_POLL_S)
        if stop.requested:
            raise StoppedError("stopped while standing by")


def take_over(
    authority: Authority, checkpoints: Checkpoints, ppo: PpoUpdate, wait: Callable[[], None] | None
) -> Snapshot | None:
    """Take the lease, with the newest checkpoint loaded into `ppo`; None where there is no checkpoint.

    `wait` is given on standby: it returns when nobody leads.

    Raises:
        LeaseHeldError: a living learner leads, and this one is not on standby.
    """
    while True:
        if wait is not None:
            wait()
        snapshot = checkpoints.restore(ppo)
        files = checkpoints.files()
        if snapshot:
            authority.restore(snapshot.version, snapshot.lineage, snapshot.books, snapshot.actor_boots)
        try:
            authority.acquire(*(snapshot.epoch, snapshot.progress.update) if snapshot else (0, 0))
        except LeaseHeldError:
            if wait is None:
                raise
            continue
        if checkpoints.files() == files:
            if snapshot:
                _log.info("resuming at update %d", snapshot.progress.update)
            return snapshot
        authority.release()  # a predecessor saved once more before it went
