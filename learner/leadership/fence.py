"""The fence that lease, publisher and bookkeeper share: one lock, one epoch, one set of scripts.

Two threads write a run's keys: the loop's (publish, settle, end the run) and the keeper's (renew, heal,
audit, trim, status). Each holds `lock` from reading the epoch under which it writes, and what it compares
with, until Redis has answered and memory agrees. So the keeper puts back only what was published last,
counts nothing in the middle of a settle, and never replaces the epoch of a write that is under way.

* Between two attempts, while Redis is away, the lock is free. It is re-entrant, because a renewal publishes.
* Without it: taking the lease, before the keeper runs; handing it back, after the keeper was closed;
  removing keys of a foreign type; reading a single value (epoch, version, lineage, boots).
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from dppo_redis.errors import FencedError
from dppo_redis.service.event_log import NO_HISTORY, History
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, Patience
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys

T = TypeVar("T")


class Fence:
    """One learner's writes to one run. Only the lease sets `epoch`."""

    def __init__(
        self, client: Client, keys: RunKeys, stop: StopRequest, history: History = NO_HISTORY
    ) -> None:
        self.client = client
        self.keys = keys
        self.history = history  # of what was written
        self.writes = FencedWrites(client, keys)
        self.lock = threading.RLock()
        self.epoch = 0  # each write carries it; 0 before the lease was taken
        self._patience = Patience(stop)
        self._renew: Callable[[], None] = _no_lease

    def renewed_by(self, renew: Callable[[], None]) -> None:
        """The lease tells how it is renewed; it stands above the fence, so it cannot be passed in."""
        self._renew = renew

    def insist(self, what: str, action: Callable[[], T]) -> T:
        """Repeat `action`, each time under the lock, while Redis is away; renews an epoch that was wiped.

        Raises:
            FencedError: another learner leads.
        """

        def locked() -> T:
            with self.lock:
                return action()

        while True:
            try:
                return self._patience.call(what, locked)
            except FencedError:  # or the epoch was wiped, or is ours: the reply to a renewal was lost
                self._patience.call("renew the lease", self._renew)


def _no_lease() -> None:
    raise FencedError("this learner never took the lease")
