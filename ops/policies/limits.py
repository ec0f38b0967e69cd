"""Limits the time of environment calls in commands that step environments in their own process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.protocol.spec import JoinSettings
from dppo_redis.service.shutdown import StopRequest
from workers.watchdog import CallClock, Watchdog


@contextmanager
def under_limit(join: JoinSettings, stop: StopRequest) -> Iterator[CallClock]:
    """Yield a clock that times each call. A call longer than the run's limit ends the process.

    A call that does not return after a stop request also ends the process, with the stop's exit status.
    """

    def print_reason(reason: str | None) -> None:
        if reason is not None:
            print(f"dppo-redis: {reason}: env_timeout_s is {join.env_timeout_s:g} s", file=sys.stderr)

    calls = CallClock()
    with Watchdog(calls, join.env_timeout_s, stop, stopped_status=None, farewell=print_reason):
        yield calls
