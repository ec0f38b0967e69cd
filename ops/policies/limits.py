"""What holds where a command steps environments in its own process: their limit, a stop, and their end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.protocol.spec import JoinSettings
from dppo_redis.service.ending import adopt_orphans, end_descendants, end_process
from dppo_redis.service.shutdown import StopRequest
from workers.watchdog import CallClock, Watchdog


@contextmanager
def under_limit(join: JoinSettings, stop: StopRequest) -> Iterator[CallClock]:
    """The clock to tell of each call; one that takes longer than the run's limit ends the process.

    So does one that goes on when a stop is requested, with the status of that. What the environments
    started ends with them.
    """

    def leave(reason: str | None) -> None:
        if reason is None:
            end_process(stop.exit_status)
        print(f"dppo-redis: {reason}: env_timeout_s is {join.env_timeout_s:g} s", file=sys.stderr)

    adopt_orphans()
    calls = CallClock()
    with Watchdog(calls, join.env_timeout_s, stop, farewell=leave):
        try:
            yield calls
        finally:
            end_descendants()
