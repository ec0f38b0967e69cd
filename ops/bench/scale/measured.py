"""What is measured at one point of the curve, what came of it, and what is wrong with that. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dppo_redis.protocol.reports import LedgerSummary

PARTS = 5  # of the time, each of which gives a sample


@dataclass(frozen=True)
class Wish:
    """What is measured."""

    actors: int
    planned: int  # of these
    processes: int
    seconds: float
    step_s: float  # of an environment
    churn: float  # share of the actors that is replaced in a minute
    kills: bool  # one process of actors in the middle


@dataclass(frozen=True)
class Measured:
    """What came of it. Times in seconds, unless the name says otherwise."""

    wish: Wish
    started_s: float  # until all had joined
    rates: list[float]  # steps per second, of each fifth of the time
    push_ms: list[float]  # sorted, like the next one
    fetch_ms: list[float]
    status_s: list[float]  # of the command
    status_cpu_s: list[float]
    keeper_ms: list[float]  # computing time of a round
    joined: int
    left: int
    killed: int
    registered: int  # just before the run ended
    outlived: int  # registrations that were left of killed actors then
    pushed: int  # by the actors that could still tell
    ambiguous: int  # pushes of theirs whose reply was lost
    ledger: LedgerSummary
    staleness_mean: float
    staleness_max: int
    connections: int
    server_mb: float  # most memory
    server_cpu: float  # share of one core, like the next two
    learner_cpu: float
    actors_cpu: float
    failures: list[str]

    @property
    def rate(self) -> float:
        """Steps per second."""
        return sum(self.rates) / len(self.rates)

    @property
    def shares(self) -> list[float]:
        """Steps delivered in each part of the time, by those that the environments could make."""
        return [rate * self.wish.step_s / self.wish.actors for rate in self.rates]

    @property
    def faults(self) -> list[str]:
        """What must not be: rollouts without an outcome, registrations that outlive their actors, errors."""
        ledger, added = self.ledger, self.ledger.entries_added
        settled = ledger.trained + ledger.stale + ledger.duplicate + ledger.refused + ledger.lost
        found = list(dict.fromkeys(self.failures))
        if ledger.imbalance or added != settled + ledger.backlog:
            found.append(f"{added} rollouts were added, and {settled} settled: {ledger}")
        if not self.killed and not self.pushed <= added <= self.pushed + self.ambiguous:
            found.append(f"the actors pushed {self.pushed} rollouts, and {added} were added")
        if self.outlived:
            found.append(f"{self.outlived} killed actors were still registered at the end")
        return found


def rates(counts: Sequence[tuple[float, float]], began: float, ended: float) -> list[float]:
    """What was added per second in equal parts of the time, from counts that were read again and again."""
    edges = [began + (ended - began) * part / PARTS for part in range(PARTS + 1)]
    nearest = [min(counts, key=lambda count: abs(count[0] - edge)) for edge in edges]
    pairs = itertools.pairwise(nearest)
    return [(later - sooner) / (at - before) for (before, sooner), (at, later) in pairs if at > before]


def percentile(ordered: Sequence[float], share: float) -> float:
    """That of sorted numbers; 0 without any."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
