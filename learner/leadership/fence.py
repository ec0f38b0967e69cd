"""The lock, the epoch and the write scripts that lease, publisher and bookkeeper of one learner share.

Two threads write a run's keys: the loop's (publish, settle, end the run) and the keeper's (renew, heal,
audit, trim, status). For a write, a thread takes `lock`, reads the epoch and the values it compares, writes,
waits for Redis's answer, updates its memory, and only then releases the lock. So the keeper restores the last
publication and no older one, counts nothing in the middle of a settle, and never replaces the epoch during a
write.

* Between two attempts, while Redis is away, the lock is free. It is re-entrant, because a renewal publishes.
* These run without the lock: taking the lease, before the keeper runs; returning it, after the keeper was
  closed; removing keys of a foreign type; reading a single value (epoch, version, lineage, boots).
"""

import threading

from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys


class Fence:
    """Lock, epoch and write scripts of one learner process. Only the lease sets `epoch`."""

    def __init__(self, client: Client, keys: RunKeys, event_log: EventLog = NO_EVENT_LOG) -> None:
        self.client = client
        self.keys = keys
        self.event_log = event_log  # records every write
        self.writes = FencedWrites(client, keys)
        self.lock = threading.RLock()
        self.epoch = 0  # sent with each write; 0 before the lease was taken
