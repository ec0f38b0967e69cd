"""Does the holder still renew? One answer for leases (learners) and registrations (actors).

Renewal is what counts, not presence: what runs out by the server's clock lives on for minutes when that
clock is set back. A holder that renews shows another beat; one whose beat stood still for the whole time to
live, by the clock of the process that looks, has ended.

`HolderWatch` is the rule, fed with looks and times. Four ask it: a learner that takes the lease, one that
stands by, `train` before and after a run in a Redis that it shares, and an actor that takes a given slot. The
last two ask by way of `living_holder`, which looks for a while. Nothing is written here.
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
    """What the looks so far say."""

    UNKNOWN = "not seen to be renewed"
    RENEWED = "a living process holds it"
    ENDED = "it is free"


@dataclass(frozen=True)
class HolderReading:
    """The holder at one moment; fields other than `holder` stay unset where the caller cannot know them."""

    holder: str | None
    left_s: float | None = None  # until it expires; 0 also if it never does, or expired during the reading
    beat: Hashable = None  # another value after each renewal; None by an older release
    is_dead: bool = False  # the holder's process is known to be gone


class HolderWatch:
    """Judges one lease or registration from looks at it, in the order in which they were made."""

    def __init__(self, ttl_s: float = math.inf, vacant_looks: int = 1) -> None:
        """`vacant_looks` in a row without a holder make an end; so does one after the time that was left."""
        self._ttl_s = ttl_s
        self._vacant_looks = vacant_looks
        self._vacant = 0
        self._last: tuple[str, Hashable] | None = None  # holder and beat
        self._since = 0.0  # when they were first seen
        self._least_left_s = math.inf
        self._runs_out = math.inf

    def judge(self, look: HolderReading, now: float) -> HolderState:
        """Whether the holder renews: a new beat; without beats more time left, or a whole TTL outlived."""
        has_more_left = look.left_s is not None and look.left_s > self._least_left_s
        if look.left_s is not None:
            self._least_left_s = min(self._least_left_s, look.left_s)
        if look.holder is None:
            self._vacant += 1
            is_over = self._vacant >= self._vacant_looks or now >= self._runs_out
            return HolderState.ENDED if is_over else HolderState.UNKNOWN
        self._vacant = 0
        if look.left_s:
            self._runs_out = now + look.left_s
        seen, before = (look.holder, look.beat), self._last
        if seen != before:
            self._last, self._since = seen, now
        stands_still = now - self._since > self._ttl_s + _MARGIN_S
        if look.beat is None and (has_more_left or stands_still):
            return HolderState.RENEWED
        if before is not None and look.beat != before[1]:
            return HolderState.RENEWED
        return HolderState.ENDED if look.is_dead or stands_still else HolderState.UNKNOWN


class RenewalTracker:
    """Tells holders whose beat stands still, among many that one process looks at again and again."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._since: dict[
            Hashable, tuple[Hashable, float]
        ] = {}  # holder -> its beat, and when it was first seen

    def silent(self, beats: Mapping[T, Hashable], now: float) -> set[T]:
        """Those whose beat has been the same for the whole time to live; who has gone is forgotten."""
        before = self._since
        self._since = {
            holder: before[holder] if holder in before and before[holder][0] == beat else (beat, now)
            for holder, beat in beats.items()
        }
        return {holder for holder in beats if now - self._since[holder][1] > self._ttl_s + _MARGIN_S}


def living_holder(
    look: Callable[[], HolderReading], within_s: float, stop: StopRequest, *, changes_hands: bool = False
) -> str | None:
    """The holder that renews within `within_s` seconds; None if no holder does.

    A lease that is free at the first reading counts as free. So does one that becomes free later, unless it
    `changes_hands`: then reading goes on, because a waiting process may take it.
    """
    watch = HolderWatch()
    seen = look()
    if seen.holder is None:
        return None
    deadline = time.monotonic() + within_s
    while (answer := watch.judge(seen, time.monotonic())) is not HolderState.RENEWED:
        has_ended = answer is HolderState.ENDED and not changes_hands
        if has_ended or time.monotonic() >= deadline or stop.requested:
            return None
        stop.sleep(_POLL_S)
        seen = look()
    return seen.holder
