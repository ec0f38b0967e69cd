"""The watchdog: ends a process whose environments hang, and does its periodic duties during long calls.

It runs in threads, because the main thread is inside the user's code. That code cannot be interrupted; only
its process can be ended. supervisord then restarts the service. A native call may keep all Python threads
from running. Then a timer of `faulthandler`, which needs no thread, ends the process. The watchdog postpones
this timer as long as it can run.
"""

import contextlib
import faulthandler
import logging
import threading
import time
from collections.abc import Callable

from dppo_redis.errors import ExitStatus
from dppo_redis.service import user_code
from dppo_redis.service.ending import end_process, end_simulators, reap_strays
from dppo_redis.service.shutdown import StopRequest
from workers.separate.call_clock import CallClock as CallClock

STOP_GRACE_S = 1.5  # longest time of a call after a stop was requested
_PERIOD_S = 0.25
_SILENCE_MARGIN_S = 4.0  # over the limit of a call; a guard, if there is one, acts earlier
_REAPING_PERIOD_S = 20.0
_log = logging.getLogger("dppo")


class Watchdog:
    """Checks the clock of the environments in one thread; a second thread does slow work.

    Args:
        calls: says when the present calls of environments began.
        limit_s: longest time of one call.
        stop: once it is requested, the limit is STOP_GRACE_S.
        stopped_status: exit status of the process if a signal requested the stop; None: the status of a
            command that this signal stopped.
        meanwhile: called about four times a second; it must handle its own errors.
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
        self._threads = [
            threading.Thread(target=self._run, name="watchdog", daemon=True),
            threading.Thread(target=self._run_duties, name="watchdog duties", daemon=True),
        ]

    def __enter__(self) -> "Watchdog":
        user_code.set_limit(self._limit_s)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(timeout=1.0)
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self._postpone_timer()
            self._check_limits()

    def _run_duties(self) -> None:
        strays: frozenset[int] = frozenset()
        next_strays = time.monotonic() + _REAPING_PERIOD_S
        while not self._closing.wait(_PERIOD_S):
            self._meanwhile()
            if time.monotonic() > next_strays:
                next_strays = time.monotonic() + _REAPING_PERIOD_S
                strays = reap_strays(strays)

    def _postpone_timer(self) -> None:
        """Postpone the timer that ends a process without running threads: status 1, tracebacks in the log."""
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback_later(self._limit_s + _SILENCE_MARGIN_S, exit=True, file=2)

    def _check_limits(self) -> None:
        taken_s = self._calls.runs_s()
        if self._stop.requested and self._stopping_since is None:
            self._stopping_since = time.monotonic()
        if taken_s > self._limit_s:
            self._end(f"the environments did not answer for {taken_s:.0f} s", ExitStatus.ENVIRONMENT_BROKEN)
        if self._stopping_since is not None:
            waited_s = min(taken_s, time.monotonic() - self._stopping_since)
            if waited_s > STOP_GRACE_S:
                status = self._stop.exit_status if self._stopped_status is None else self._stopped_status
                self._end(None, status if self._stop.signal else ExitStatus.DONE)

    def _end(self, reason: str | None, status: ExitStatus) -> None:
        if reason is not None:
            _log.error("%s; ending this process", reason)
        for process in list(self._calls.processes):
            process.kill()
        end_simulators()
        self._farewell(reason)
        end_process(status)
