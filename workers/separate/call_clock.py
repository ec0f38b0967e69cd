"""When the present calls of environments began: the watchdog reads it, also while the main thread is busy."""

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from dppo_redis.service import user_code


class CallClock:
    """Records when the present calls of environments began; the watchdog reads it."""

    def __init__(self) -> None:
        self.began: float | None = None  # monotonic, the main thread's call; None between calls
        self.processes: set[BaseProcess] = set()  # processes of environments that do not run in this one
        # Of environments that run in other processes or threads: when their longest call began, if one runs.
        self.elsewhere: list[Callable[[], float | None]] = []

    def start(self) -> None:
        """Record that a call begins."""
        self.began = time.monotonic()
        user_code.enter()

    def stop(self) -> None:
        """Record that the call has returned or raised."""
        self.began = None
        user_code.leave()

    def runs_s(self) -> float:
        """How long the longest present call has taken; 0 between calls."""
        began = [self.began, *(oldest() for oldest in tuple(self.elsewhere))]
        running = [one for one in began if one is not None]
        return time.monotonic() - min(running) if running else 0.0
