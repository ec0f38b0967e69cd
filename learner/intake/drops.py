"""Counts dropped rollouts by actor, and raises the alarms about drops.

Operators read these numbers. The ledger counts independently of them.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dppo_redis.protocol.ledger import Settlement
from dppo_redis.service.logs import RateLimit

_SILENCE_S = 30.0
_PAIRS_KEPT = 1000  # limit of (actor, reason) pairs, because the actor's name is unchecked
_ACTORS_SHOWN = 10
_MINUTE_S = 60.0
_ACTOR_S = 30.0
_MOST_STALE = 0.05  # share of a run's rollouts; the alarm is raised above it
_MOST_STALE_OF_ONE = 0.5  # share of one actor's rollouts
_FEWEST = 10  # judged rollouts of a run; with fewer a share means nothing
_FEWEST_OF_ONE = 3
_log = logging.getLogger("dppo")


def outcome_and_reason(settlement: Settlement) -> str:
    """Outcome and reason in one word: `stale`, `refused:crc`."""
    return ":".join(filter(None, (settlement.outcome.value, settlement.reason)))


class DropsByActor:
    """Drops by actor and reason since this process began."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, actor: bytes, settlement: Settlement) -> str:
        """Count a drop; `actor` is the entry's unchecked text. Returns the actor's name in the counts."""
        name = actor.decode() if actor.isdigit() and len(actor) < 20 else "unknown"
        if (name, outcome_and_reason(settlement)) not in self._counts and len(self._counts) >= _PAIRS_KEPT:
            name = "others"
        pair = (name, outcome_and_reason(settlement))
        self._counts[pair] = self._counts.get(pair, 0) + 1
        return name

    @property
    def text(self) -> str:
        """The actors with most drops: `actor 1000: 12 refused:spec, actor 3: 2 stale`."""
        most = sorted(self._counts.items(), key=lambda counted: -counted[1])[:_ACTORS_SHOWN]
        return ", ".join(f"actor {actor}: {count} {reason}" for (actor, reason), count in most)


class AllDropped:
    """Detects that all rollouts of the last 30 s or more were dropped, and for which reasons."""

    def __init__(self) -> None:
        self._first_drop = self._last_drop = 0.0  # monotonic, since a rollout was last accepted
        self._causes: Counter[str] = Counter()
        self._rate_limit = RateLimit()

    def record(self, dropped: Sequence[Settlement], gathered: bool) -> None:
        """Record the drops of one poll; `gathered` says whether the learner holds accepted rollouts."""
        now = time.monotonic()
        if gathered:
            self._causes = Counter()
        elif dropped:
            self._first_drop = self._first_drop if self._causes else now
            self._last_drop = now
            self._causes.update(map(outcome_and_reason, dropped))
            if self.text and self._rate_limit.due():
                _log.error("%s", self.text)

    @property
    def text(self) -> str:
        """The alarm with its causes; empty while rollouts are accepted, or while none arrive."""
        causes, lasted_s = self._causes, self._last_drop - self._first_drop
        if not causes or lasted_s < _SILENCE_S or time.monotonic() - self._last_drop > _SILENCE_S:
            return ""
        listed = ", ".join(f"{count} {name}" for name, count in causes.most_common(3))
        return f"all {causes.total()} rollouts of the last {lasted_s:.0f} s were dropped: {listed}"


@dataclass
class _Second:
    """The rollouts judged within one second."""

    at: float  # monotonic, of its begin
    fresh: Counter[str] = field(default_factory=Counter)  # by actor
    stale: Counter[str] = field(default_factory=Counter)
    staleness: int = 0  # sum over the fresh ones


class RecentStaleness:
    """Counts the last minute's rollouts that were too old to train on, and the staleness of the others."""

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque()
        self._began: float | None = None  # monotonic, when the first one was judged

    def add(self, actor: str, staleness: int | None) -> None:
        """Count a judged rollout; `staleness` is in updates, None if it was too old."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        if not self._seconds or now - self._seconds[-1].at >= 1.0:
            self._seconds.append(_Second(now))
            while self._seconds[0].at < now - _MINUTE_S:
                self._seconds.popleft()
        second = self._seconds[-1]
        counts = second.stale if staleness is None else second.fresh
        name = actor if actor in counts or len(counts) < _PAIRS_KEPT else "others"
        counts[name] += 1
        second.staleness += staleness or 0

    def _last(self, seconds: float) -> list[_Second]:
        start = time.monotonic() - seconds
        return [second for second in self._seconds if second.at >= start]

    @property
    def share(self) -> float:
        """Share of the last minute's rollouts that were too old."""
        fresh, stale = self._counts()
        return stale / (fresh + stale) if stale else 0.0

    def _counts(self) -> tuple[int, int]:
        last = self._last(_MINUTE_S)
        return sum(s.fresh.total() for s in last), sum(s.stale.total() for s in last)

    @property
    def mean(self) -> float | None:
        """Mean staleness in updates of the last minute's accepted rollouts; None without any."""
        last = self._last(_MINUTE_S)
        fresh = sum(second.fresh.total() for second in last)
        return sum(second.staleness for second in last) / fresh if fresh else None

    @property
    def text(self) -> str:
        """The warning for the operator; empty while all is well, and in the first half minute."""
        if self._began is None or time.monotonic() - self._began < _ACTOR_S:
            return ""
        fresh, stale = self._counts()
        if fresh + stale >= _FEWEST and stale > _MOST_STALE * (fresh + stale):
            return (
                f"{100 * stale / (fresh + stale):.0f} % of the rollouts of the last minute were too old to "
                "train on: set max_staleness higher or rollout_steps lower, or use fewer actors"
            )
        return self._slowest()

    def _slowest(self) -> str:
        """The actor with most stale rollouts, if these are more than half of its rollouts."""
        judged, late = Counter[str](), Counter[str]()
        for second in self._last(_ACTOR_S):
            judged.update(second.fresh)
            judged.update(second.stale)
            late.update(second.stale)
        for actor, count in late.most_common():
            if judged[actor] >= _FEWEST_OF_ONE and count > _MOST_STALE_OF_ONE * judged[actor]:
                return (
                    f"{count} of {judged[actor]} rollouts of actor {actor} of the last {_ACTOR_S:.0f} s were "
                    "too old to train on: it is much slower than the others"
                )
        return ""


class Drops:
    """The three counts of the intake's drops, and their alarm."""

    def __init__(self) -> None:
        self.all_dropped = AllDropped()
        self.by_actor = DropsByActor()
        self.recent_staleness = RecentStaleness()

    @property
    def alarm(self) -> str:
        """The most urgent text for the operator; empty while all is well."""
        return self.all_dropped.text or self.recent_staleness.text
