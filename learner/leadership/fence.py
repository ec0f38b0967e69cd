"""The fence within which a learner writes: one lock, one epoch, one set of scripts.

Two threads write a run's keys: the loop's (publish, settle, end the run) and the keeper's (renew, heal,
audit, trim, status). Each holds `lock` from reading the epoch under which it writes, and what it compares
with, until Redis has answered and memory agrees. So the keeper restores only the last publication,
counts nothing in the middle of a settle, and never replaces the epoch of a write that is under way.

* Between two attempts, while Redis is away, the lock is free. It is re-entrant, because a renewal publishes.
* Without it: taking the lease, before the keeper runs; handing it back, after the keeper was closed;
  removing keys of a foreign type; reading a single value (epoch, version, lineage, boots).
"""

import threading

from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys


class Fence:
    """What lease, publisher and bookkeeper of one learner process share. Only the lease sets `epoch`."""

    def __init__(self, client: Client, keys: RunKeys, event_log: EventLog = NO_EVENT_LOG) -> None:
        self.client = client
        self.keys = keys
        self.event_log = event_log  # of what was written
        self.writes = FencedWrites(client, keys)
        self.lock = threading.RLock()
        self.epoch = 0  # each write carries it; 0 before the lease was taken
