"""Checks a Redis that already runs, claims the run's name in it, and expires the run's keys at the end."""

import logging
from collections.abc import Callable

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.renewal import HolderReading, living_holder
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.address import redact
from dppo_redis.store.client import INTERACTIVE_PATIENCE_S, RetryLoop, connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import STOP, RunStore
from ops.fleet.broker import check_server
from ops.fleet.run_directory import RunDirectory
from ops.options import TrainOptions

_LEASE_CHECK_S = 2.5
_log = logging.getLogger("dppo")


def check_shared(url: str, options: TrainOptions, directory: RunDirectory, stop: StopRequest) -> None:
    """Refuse a Redis that cannot be reached or used, and a run name that is taken. Writes nothing.

    Raises:
        ConfigurationError, UnavailableError: the message names the remedy.
    """
    client = connect(url, "dppo-train")
    retry = RetryLoop(stop, deadline_s=INTERACTIVE_PATIENCE_S)
    for warning in retry.call(f"reach {redact(url)}", lambda: check_server(client)):
        _log.warning("%s", warning)
    store = RunStore(client, RunKeys(directory.run))
    _refuse_living_learner(store, retry, stop)
    if options.overwrite or options.resume:
        return
    if retry.call("look for the run", store.exists):
        raise _taken(directory.run)


def prepare_shared(url: str, options: TrainOptions, directory: RunDirectory, stop: StopRequest) -> None:
    """Take the name of the run; remove or reopen the keys of an earlier run of this name in Redis.

    Raises:
        ConfigurationError: another command took the name in the meantime.
    """
    retry = RetryLoop(stop, deadline_s=INTERACTIVE_PATIENCE_S)
    store = RunStore(connect(url, "dppo-train"), RunKeys(directory.run))
    if options.resume:
        retry.call("reopen the run", store.reopen)
        return
    if options.overwrite:
        retry.call("remove the old run", store.delete)
    if not retry.call("take the name of the run", store.claim):
        raise _taken(directory.run)


def leave_shared(store: RunStore, *, failed: bool) -> None:
    """Let the keys of an ended run expire. If another learner leads the run, leave the keys to it."""
    leader = living_leader(store.lease, StopRequest())
    leader = leader and living_leader(
        store.lease, StopRequest()
    )  # our own learner may have been ending during the first check
    if leader:
        _log.warning(
            "the keys of run %s stay as they are: another learner, %s, leads it", store.keys.run, leader
        )
        return
    if failed:
        store.set_state(STOP, "failed")
    store.retire()


def living_leader(read: Callable[[], HolderReading], stop: StopRequest) -> str:
    """The learner that renews the lease during the next seconds; empty if no learner does."""
    return living_holder(read, _LEASE_CHECK_S, stop, changes_hands=True) or ""


def _refuse_living_learner(store: RunStore, retry: RetryLoop, stop: StopRequest) -> None:
    leader = living_leader(lambda: retry.call("read the lease", store.lease), stop)
    if leader:
        raise ConfigurationError(
            f"the learner {leader} leads run {store.keys.run} at present: "
            "stop that learner, or choose another --run"
        )


def _taken(run: str) -> ConfigurationError:
    return ConfigurationError(
        f"this Redis already has a run {run}: pass --resume, --overwrite or another --run"
    )
