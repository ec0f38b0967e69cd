"""Ends a process whose environments hang, and answers for it while they take long.

A thread, since the main one is inside code of the user's: that cannot be interrupted, only ended with
its process. supervisord starts the service anew.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from dppo_redis.errors import ExitStatus
from dppo_redis.service import user_code
from dppo_redis.service.shutdown import StopRequest

STOP_GRACE_S = 1.5  # how long a call may go on once a stop is requested
_PERIOD_S = 0.25
_log = logging.getLogger("dppo")


class CallClock:
    """When the present call of an environment began. Written by the main thread, read by the watchdog."""

    def __init__(self) -> None:
        self.began: float | None = None  # monotonic; None between calls
        self.processes: set[BaseProcess] = set()  # those that environments run in, if not in this one

    def start(self) -> None:
        """A call begins."""
        self.began = time.monotonic()
        user_code.enter()

    def stop(self) -> None:
        """It has answered, or raised."""
        self.began = None
        user_code.leave()

    def runs_s(self) -> float:
        """How long the present call has taken; 0 between calls."""
        began = self.began
        return 0.0 if began is None else time.monotonic() - began


class Watchdog:
    """Looks at the clock of the environments from a thread of its own.

    Args:
        calls: when the main thread, which alone calls environments, began to.
        limit_s: how long one call may take.
        stop: once it is requested, the limit is STOP_GRACE_S.
        stopped_status: what the process then ends with; None: what a command says after this signal.
        meanwhile: called about four times a second; what goes wrong in it is its own affair.
        farewell: called with the reason before the process ends, None for a stop.
    """

    def __init__(
        self,
        calls: CallClock,
        limit_s: float,
        stop: StopRequest,
        *,
        stopped_status: ExitStatus | None = ExitStatus.DONE,
        meanwhile: Callable[[], None] = lambda: None,
        farewell: Callable[[str | None], None] = lambda _reason: None,
    ) -> None:
        self._calls = calls
        self._limit_s = limit_s
        self._stop = stop
        self._stopped_status = stopped_status
        self._stopping_since: float | None = None
        self._meanwhile = meanwhile
        self._farewell = farewell
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        user_code.set_limit(self._limit_s)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self._look()
            self._meanwhile()

    def _look(self) -> None:
        taken_s = self._calls.runs_s()
        if self._stop.requested and self._stopping_since is None:
            self._stopping_since = time.monotonic()
        if taken_s > self._limit_s:
            self._end(f"the environments did not answer for {taken_s:.0f} s", ExitStatus.ENVIRONMENT_BROKEN)
        if self._stopping_since is not None:
            waited_s = min(taken_s, time.monotonic() - self._stopping_since)
            if waited_s > STOP_GRACE_S:
                status = self._stop.exit_status if self._stopped_status is None else self._stopped_status
                self._end(None, status)

    def _end(self, reason: str | None, status: ExitStatus) -> None:
        if reason is not None:
            _log.error("%s; ending this process", reason)
        for process in list(self._calls.processes):
            process.kill()
        self._farewell(reason)
        logging.shutdown()
        os._exit(status)
