"""Names the missing actors and those that die repeatedly, in text lines, which the keeper reads each round.

Times are by the keeper's own clock, because the clocks of the actors' hosts may differ.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dppo_redis.protocol.reports import ActorReport

LATE_S = 3.0  # a registration that is missing for less was only wiped, or another process takes it over
STARTING_S = 20.0  # a planned actor may take this long to start
REMEMBERED_S = 600.0
_MANY_DEATHS = 2
_MOST_LINES = 6


@dataclass(frozen=True)
class _LastReport:
    report: ActorReport
    at: float


@dataclass
class MissingActors:
    """Remembers which actors were registered, and when each was last seen."""

    planned_actors: int
    began: float  # monotonic
    _seen: dict[int, _LastReport] = field(default_factory=dict)
    _living: set[int] = field(default_factory=set)

    def record(self, living: Mapping[int, ActorReport], vanished: Collection[int], now: float) -> None:
        """Record the living actors. Registrations of `vanished` expired; other absent actors deregistered."""
        gone = [slot for slot in self._living if slot not in living and slot not in vanished]
        for slot in gone:
            if slot >= self.planned_actors:
                del self._seen[slot]
        self._living = set(living)
        self._seen |= {slot: _LastReport(report, now) for slot, report in living.items()}
        for slot, seen in list(self._seen.items()):
            if slot >= self.planned_actors and now - seen.at > REMEMBERED_S:
                del self._seen[slot]

    def lines(self, now: float, boots: Mapping[str, int]) -> tuple[str, ...]:
        """One line for each problem; `boots` says how often each slot has started."""
        lines = self._missing(now, boots) + self._dying()
        more = len(lines) - _MOST_LINES
        return tuple(lines[:_MOST_LINES] + ([f"and {more} more lines like these"] if more > 0 else []))

    def _missing(self, now: float, boots: Mapping[str, int]) -> list[str]:
        late = {s: seen for s, seen in self._seen.items() if s not in self._living and now - seen.at > LATE_S}
        planned = range(self.planned_actors)
        here = sum(slot in self._living for slot in planned)
        lines: list[str] = []
        hosts_here = {self._seen[slot].report.host for slot in self._living}
        for host in dict.fromkeys(seen.report.host for seen in late.values()):
            slots = sorted(slot for slot, seen in late.items() if seen.report.host == host)
            newest = max(late[slot].at for slot in slots)
            who = _listed(slots)
            place = f"host {host} ({who})" if host not in hosts_here else f"{who} on host {host}"
            lines.append(f"{place} last seen {now - newest:.0f} s ago{_why(late[slots[-1]].report)}")
        absent = [slot for slot in planned if slot not in self._seen]
        if absent and now - self.began > STARTING_S:
            starts = max((boots.get(str(slot), 0) for slot in absent), default=0)
            often = f", started {starts} times" if starts else ""
            lines.append(f"{_listed(absent)} not seen yet{often}")
        is_short = here < self.planned_actors
        count = f"{here} of {self.planned_actors} planned actors, " if is_short else ""
        return [f"{count}{line}" for line in lines]

    def _dying(self) -> list[str]:
        return [
            f"actor {slot} has died {report.deaths} times{_why(report)}"
            for slot, report in ((slot, self._seen[slot].report) for slot in sorted(self._living))
            if (report.deaths or 0) >= _MANY_DEATHS
        ]


def _listed(slots: list[int]) -> str:
    more = f" and {len(slots) - 8} more" if len(slots) > 8 else ""
    return f"actor{'s' * (len(slots) > 1)} {', '.join(map(str, slots[:8]))}{more}"


def _why(report: ActorReport) -> str:
    reason = report.last_death or report.last_error
    return f": {reason[:200]}" if reason else ""
