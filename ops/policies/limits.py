"""The limit of environments that a command steps in its own process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.protocol.spec import JoinSettings
from dppo_redis.service.shutdown import StopRequest
from workers.watchdog import CallClock, Watchdog


@contextmanager
def under_limit(join: JoinSettings, stop: StopRequest) -> Iterator[CallClock]:
    """The clock to tell of each call; one that takes longer than the run's limit ends the process.

    So does one that goes on when a stop is requested, with the status of that.
    """

    def say(reason: str | None) -> None:
        if reason is not None:
            print(f"dppo-redis: {reason}: env_timeout_s is {join.env_timeout_s:g} s", file=sys.stderr)

    calls = CallClock()
    with Watchdog(calls, join.env_timeout_s, stop, stopped_status=None, farewell=say):
        yield calls
