"""Decides whether the holder of a lease (a learner) or of a registration (an actor) still renews it.

The rule watches renewals, because a key that exists proves nothing: when the server's clock is set back, the
key of a dead holder lives on for minutes. Each renewal changes the holder's beat. A holder has ended if its
beat stays the same for a whole time to live, by the clock of the process that reads it.

`HolderWatch` is the rule; it takes readings and their times. Four callers use it: a learner that takes
the lease, a learner that stands by, `train` before and after a run in a shared Redis, and an actor that takes
a given slot. The last two call `living_holder`, which reads repeatedly. This module writes nothing to Redis.
"""

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from dppo_redis.service.shutdown import StopRequest

_MARGIN_S = 1.0
_POLL_S = 0.2
T = TypeVar("T", bound=Hashable)


class HolderState(Enum):
    """The holder's state by the readings so far."""

    UNKNOWN = "not seen to be renewed"
    RENEWED = "a living process holds it"
    ENDED = "it is free"


@dataclass(frozen=True)
class HolderReading:
    """The holder at one moment; the caller sets the fields that it knows."""

    holder: str | None
    left_s: float | None = None  # until the key expires; 0 if it never does or expired during the reading
    beat: Hashable = None  # changes with each renewal; older releases write none
    is_dead: bool = False  # the holder's process is known to be gone


class HolderWatch:
    """Judges one lease or registration from its readings, in the order in which they were made."""

    def __init__(self, ttl_s: float = math.inf, vacant_readings: int = 1) -> None:
        """Judge a lease of `ttl_s` seconds.

        It is free after `vacant_readings` in a row without a holder, or after one such reading past its
        expiry.
        """
        self._ttl_s = ttl_s
        self._vacant_readings = vacant_readings
        self._vacant = 0
        self._last: tuple[str, Hashable] | None = None  # holder and beat
        self._since = 0.0  # when they were first seen
        self._least_left_s = math.inf
        self._runs_out = math.inf

    def judge(self, reading: HolderReading, now: float) -> HolderState:
        """Judge from one more reading whether the holder renews.

        A new beat is a renewal. A holder without beats renews if more time is left than before, or if it
        outlived a whole time to live.
        """
        has_more_left = reading.left_s is not None and reading.left_s > self._least_left_s
        if reading.left_s is not None:
            self._least_left_s = min(self._least_left_s, reading.left_s)
        if reading.holder is None:
            self._vacant += 1
            is_over = self._vacant >= self._vacant_readings or now >= self._runs_out
            return HolderState.ENDED if is_over else HolderState.UNKNOWN
        self._vacant = 0
        if reading.left_s:
            self._runs_out = now + reading.left_s
        seen, before = (reading.holder, reading.beat), self._last
        if seen != before:
            self._last, self._since = seen, now
        stands_still = now - self._since > self._ttl_s + _MARGIN_S
        if reading.beat is None and (has_more_left or stands_still):
            return HolderState.RENEWED
        if before is not None and reading.beat != before[1]:
            return HolderState.RENEWED
        return HolderState.ENDED if reading.is_dead or stands_still else HolderState.UNKNOWN


class RenewalTracker:
    """Finds the holders that do not renew, among many that one process reads repeatedly."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._since: dict[
            Hashable, tuple[Hashable, float]
        ] = {}  # holder -> its beat, and when it was first seen

    def silent(self, beats: Mapping[T, Hashable], now: float) -> set[T]:
        """The holders whose beat did not change for the whole time to live. Missing holders are forgotten."""
        before = self._since
        self._since = {
            holder: before[holder] if holder in before and before[holder][0] == beat else (beat, now)
            for holder, beat in beats.items()
        }
        return {holder for holder in beats if now - self._since[holder][1] > self._ttl_s + _MARGIN_S}


def living_holder(
    read: Callable[[], HolderReading], within_s: float, stop: StopRequest, *, changes_hands: bool = False
) -> str | None:
    """The holder that renews within `within_s` seconds; None if no holder does.

    A lease that is free at the first reading counts as free. A lease that becomes free later counts as free,
    too, unless `changes_hands` is set: then this function reads on, because a waiting process may take it.
    """
    watch = HolderWatch()
    seen = read()
    if seen.holder is None:
        return None
    deadline = time.monotonic() + within_s
    while (answer := watch.judge(seen, time.monotonic())) is not HolderState.RENEWED:
        has_ended = answer is HolderState.ENDED and not changes_hands
        if has_ended or time.monotonic() >= deadline or stop.requested:
            return None
        stop.sleep(_POLL_S)
        seen = read()
    return seen.holder
