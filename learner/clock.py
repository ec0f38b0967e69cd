"""Measures a run's training time, the learner's share of waiting, and steps per second of the last minute.

Training time begins when the sampling of the first rollout begins. Pauses and time without a learner do not
count.
"""

import threading
import time
from collections import deque

WINDOW_S = 60.0  # "of the last minute"


class TrainingClock:
    """Measures the run's training time, over all its learner processes."""

    def __init__(self, spent_s: float = 0.0) -> None:
        self._spent_s = spent_s  # seconds before the clock last began to run
        self._since: float | None = None  # monotonic; None while the clock stands still
        self.has_begun = False
        self.is_paused = False

    def begin(self, ago_s: float = 0.0) -> None:
        """Start the clock, once: the sampling of the first rollout began `ago_s` seconds ago."""
        if not self.has_begun:
            self.has_begun = True
            self._since = time.monotonic() - ago_s

    def pause(self) -> None:
        """Stop the clock until `resume` is called."""
        self._spent_s, self._since = self.read_s(), None
        self.is_paused = True

    def resume(self) -> None:
        """End a pause, if there is one."""
        if self.is_paused and self.has_begun:
            self._since = time.monotonic()
        self.is_paused = False

    def read_s(self) -> float:
        """Training time so far, in seconds."""
        return self._spent_s + (time.monotonic() - self._since if self._since is not None else 0.0)


class WaitMeter:
    """Measures the share of the last minute that the learner waited, including a wait that still lasts.

    The loop begins and ends waits; the keeper's thread reads the share, too. Time before the first wait does
    not count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: deque[tuple[float, float]] = deque()  # begin and end, monotonic
        self._since: float | None = None  # when the present wait began
        self._first: float | None = None  # when the first wait began

    def begin(self) -> None:
        """Begin a wait, unless one lasts already."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                self._first = self._since if self._first is None else self._first

    def end(self) -> float:
        """End the wait; returns its seconds, 0 if there was none."""
        with self._lock:
            if self._since is None:
                return 0.0
            began, now = self._since, time.monotonic()
            self._waits.append((began, now))
            self._since = None
            while self._waits[0][1] < now - WINDOW_S:
                self._waits.popleft()
            return now - began

    @property
    def lasting_s(self) -> float:
        """Seconds of the present wait so far; 0 between waits."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def share(self) -> float:
        """Share of waiting in the last minute, or since the first wait if that is less than a minute ago."""
        with self._lock:
            now = time.monotonic()
            if self._first is None or now <= self._first:
                return 0.0
            start = max(self._first, now - WINDOW_S)
            waits = [*self._waits] + ([(self._since, now)] if self._since is not None else [])
            return sum(max(0.0, end - max(start, began)) for began, end in waits) / (now - start)


class RecentRate:
    """Measures trained steps per second of the last minute, by the training clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: deque[tuple[float, int]] = deque()  # seconds of the clock, steps until then

    def add(self, at_s: float, steps: int) -> None:
        """Note that `steps` steps were trained by `at_s` seconds of the training clock."""
        with self._lock:
            self._counts.append((at_s, steps))
            while len(self._counts) > 1 and self._counts[1][0] <= at_s - WINDOW_S:
                self._counts.popleft()

    def per_s(self, now_s: float) -> float:
        """Steps per second since the newest count that is at least a minute old, or since the first count."""
        with self._lock:
            counts = list(self._counts)
        if not counts:
            return 0.0
        old = [count for count in counts if count[0] <= now_s - WINDOW_S]
        began_s, steps = old[-1] if old else counts[0]
        return (counts[-1][1] - steps) / (now_s - began_s) if now_s > began_s else 0.0
