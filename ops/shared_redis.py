"""A Redis that runs already: is it there, is it fit, is the run's name free?"""

import logging
import time

from dppo_redis.errors import ConfigurationError
from dppo_redis.keys import RunKeys
from dppo_redis.redis_address import redact
from dppo_redis.redis_client import INTERACTIVE_PATIENCE_S, Patience, connect
from dppo_redis.run_store import RunStore
from dppo_redis.shutdown import StopRequest
from ops.broker import check_server
from ops.options import TrainOptions
from ops.run_directory import RunDirectory

_LEASE_CHECK_S = 2.5
_log = logging.getLogger("dppo")


def check_shared(url: str, options: TrainOptions, directory: RunDirectory, stop: StopRequest) -> None:
    """Refuse a Redis that cannot be reached or used, and a run name that is taken; nothing is written.

    Raises:
        ConfigurationError, UnavailableError: with the remedy.
    """
    client = connect(url, "dppo-train")
    patience = Patience(stop, deadline_s=INTERACTIVE_PATIENCE_S)
    for warning in patience.call(f"reach {redact(url)}", lambda: check_server(client)):
        _log.warning("%s", warning)
    store = RunStore(client, RunKeys(directory.run))
    _refuse_living_learner(store, patience, stop)
    if options.overwrite or options.resume:
        return
    if patience.call("look for the run", store.exists):
        raise ConfigurationError(
            f"this Redis already has a run {directory.run}: pass --resume, --overwrite or another --run"
        )


def prepare_shared(url: str, options: TrainOptions, directory: RunDirectory, stop: StopRequest) -> None:
    """Remove or reopen what an earlier run of this name left in Redis."""
    patience = Patience(stop, deadline_s=INTERACTIVE_PATIENCE_S)
    store = RunStore(connect(url, "dppo-train"), RunKeys(directory.run))
    if options.overwrite:
        patience.call("remove the old run", store.delete)
    elif options.resume:
        patience.call("reopen the run", store.reopen)


def _refuse_living_learner(store: RunStore, patience: Patience, stop: StopRequest) -> None:
    """A lease that is renewed while we look belongs to a living learner."""
    holder, left_ms = patience.call("look at the lease", store.lease)
    deadline = time.monotonic() + _LEASE_CHECK_S
    while holder and time.monotonic() < deadline and not stop.requested:
        stop.sleep(0.2)
        now_holder, now_left_ms = patience.call("look at the lease", store.lease)
        if now_holder and now_left_ms > left_ms:
            raise ConfigurationError(
                f"run {store.keys.run} is led by a living learner, {now_holder}: "
                "stop that one, or choose another --run"
            )
        left_ms = min(left_ms, now_left_ms)
