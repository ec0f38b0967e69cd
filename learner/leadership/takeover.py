"""Makes a learner process the leader of a run: at once, or on standby after the present leader has ended.

It runs in the loop's thread, before the keeper starts.
"""

import logging
import time
from collections.abc import Callable

from dppo_redis.errors import LeaseHeldError, StoppedError
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.renewal import HolderState, HolderWatch
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import RetryLoop
from dppo_redis.store.run_store import STOP, RunStore
from learner.checkpoint import Checkpoints, LearnerSnapshot
from learner.leadership.leadership import Leadership
from learner.leadership.lease import LEASE_TTL_S
from learner.ppo.update import PpoUpdate

_POLL_S = 0.2
_VACANT_READINGS = 15  # without a holder; a living leader restores a wiped lease within two seconds
_log = logging.getLogger("dppo")


def stand_by(store: RunStore, retry: RetryLoop, stop: StopRequest) -> None:
    """Wait until no learner leads: the leader stopped renewing its lease, or released it.

    A lease that disappears early may also have been wiped; its holder has 3 s to restore it.

    Raises:
        StoppedError: the run is over, or a stop was requested.
    """
    rate_limit = RateLimit(interval_s=60.0)
    watch = HolderWatch(LEASE_TTL_S, vacant_readings=_VACANT_READINGS)
    while True:
        if retry.call("read control", store.control).state == STOP:
            raise StoppedError(f"run {store.keys.run} is over")
        seen = retry.call("look at the lease", store.lease)
        if watch.judge(seen, time.monotonic()) is HolderState.ENDED:
            return
        if seen.holder and rate_limit.due():
            _log.info("standing by: run %s is led by %s", store.keys.run, seen.holder)
        stop.sleep(_POLL_S)
        if stop.requested:
            raise StoppedError("stopped while standing by")


def take_over(
    leadership: Leadership, checkpoints: Checkpoints, ppo: PpoUpdate, wait: Callable[[], None] | None
) -> LearnerSnapshot | None:
    """Take the lease and load the newest checkpoint into `ppo`; returns None if there is no checkpoint.

    `wait` is for standby: it returns when no learner leads. None: do not wait.

    Raises:
        LeaseHeldError: a living learner leads, and this one is not on standby.
    """
    while True:
        if wait is not None:
            wait()
        snapshot = checkpoints.restore(ppo)
        files = checkpoints.files()
        if snapshot:
            leadership.restore(
                snapshot.version, snapshot.lineage, snapshot.ledger_audit, snapshot.actor_boots
            )
        try:
            leadership.lease.acquire(*(snapshot.epoch, snapshot.progress.update) if snapshot else (0, 0))
        except LeaseHeldError:
            if wait is None:
                raise
            continue
        if checkpoints.files() == files:
            if snapshot:
                _log.info("resuming at update %d", snapshot.progress.update)
            return snapshot
        leadership.lease.release()  # the former leader saved once more before it ended
