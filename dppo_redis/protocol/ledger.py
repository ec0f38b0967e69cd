"""The ledger of a run: counts of rollouts by outcome, and their comparison with the stream. Pure.

    entries_added = trained + stale + duplicate + refused + lost + backlog

Every rollout has one outcome. The difference of the two sides is the imbalance. `entries_before` counts the
entries of streams that were deleted since, because a new stream counts from 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The final outcome of a rollout."""

    TRAINED = "trained"
    STALE = "stale"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    LOST = "lost"


ENTRIES_BEFORE = "entries_before"


@dataclass(frozen=True)
class Settlement:
    """One entry's outcome; `steps` are its valid rows, 0 if they are unknown."""

    entry_id: bytes
    outcome: Outcome
    reason: str = ""
    steps: int = 0


@dataclass
class Ledger:
    """Counts by field name, as in the Redis hash: `stale`, `refused:shape`, `steps:trained`.

    Methods copy the counts before they iterate over them, because another thread may add to them.
    """

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: Outcome, reason: str = "", steps: int = 0, entries: int = 1) -> None:
        """Count rollouts of one outcome."""
        self._increase(outcome.value, entries)
        if reason:
            self._increase(f"{outcome.value}:{reason}", entries)
        if steps:
            self._increase(f"steps:{outcome.value}", steps)

    def _increase(self, name: str, by: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def of(self, outcome: Outcome) -> int:
        """Rollouts settled with this outcome."""
        return self.counts.get(outcome.value, 0)

    @property
    def settled(self) -> int:
        """Rollouts settled with any outcome."""
        return sum(self.of(outcome) for outcome in Outcome)

    @property
    def settled_steps(self) -> int:
        """Valid steps of all settled rollouts of any outcome."""
        return sum(n for name, n in self.counts.copy().items() if name.startswith("steps:"))

    @property
    def entries_before(self) -> int:
        return self.counts.get(ENTRIES_BEFORE, 0)

    def merge(self, other: Mapping[str, int]) -> None:
        """Take the higher count of each field: counts never fall, even if a reply was lost."""
        for name, count in other.items():
            self.counts[name] = max(count, self.counts.get(name, 0))

    def reasons(self) -> Iterable[tuple[str, int]]:
        """(outcome:reason, rollouts) of all dropped rollouts, largest first."""
        found = [
            (name, n)
            for name, n in self.counts.copy().items()
            if ":" in name and not name.startswith("steps:")
        ]
        return sorted(found, key=lambda pair: -pair[1])


@dataclass(frozen=True)
class LedgerBalance:
    """The ledger and the stream's counters at one moment."""

    entries_added: int  # of all streams, deleted ones included
    backlog: int
    imbalance: int  # entries that this audit counted as lost
    outcomes: dict[str, int] = field(
        default_factory=dict
    )  # settled rollouts, also those that this audit counted as lost
    settled_steps: int = 0  # valid steps of all settled rollouts
    stream_bytes: int = 0  # in the server's memory


@dataclass
class LedgerAudit:
    """Compares the stream's own counter with the ledger, and counts vanished rollouts as lost."""

    ledger: Ledger
    last_entries_added: int = 0  # of the present stream
    stream_is_new: bool = False  # this process has just created the stream
    doubts: dict[bytes, Settlement] = field(default_factory=dict)  # may be recorded: the reply was lost
    has_adopted: bool = False
    carried: int = -1  # entries_before at the last audit, or in the checkpoint

    def __post_init__(self) -> None:
        if self.carried < 0:
            self.carried = self.ledger.entries_before

    def adopt(self, stored: Mapping[str, int], entries_added: int, backlog: int) -> bool:
        """Take over counts that only Redis has: at first the predecessor's, later those in doubt.

        Only the learner writes the ledger. A count that this learner cannot explain comes from another
        program and is ignored. Returns whether all counts were accepted.
        """
        if self.has_adopted:
            possible = Ledger(self.ledger.counts.copy())
            for doubt in self.doubts.values():
                possible.add(doubt.outcome, doubt.reason, doubt.steps)
            credible = {name: min(n, possible.counts.get(name, 0)) for name, n in stored.items()}
        else:
            credible = dict(stored) if self._adds_up(stored, entries_added, backlog) else {}
        self.has_adopted = True
        self.ledger.merge({name: n for name, n in credible.items() if n})
        return all(n <= credible.get(name, 0) for name, n in stored.items())

    def _adds_up(self, stored: Mapping[str, int], entries_added: int, backlog: int) -> bool:
        """Whether no more entries were settled than added; True if the stream was reset, which hides that."""
        merged = Ledger(self.ledger.counts.copy())
        merged.merge(stored)
        is_reset = self.stream_is_new or entries_added < self.last_entries_added
        return is_reset or merged.settled + backlog <= merged.entries_before + entries_added

    def audit(self, entries_added: int, backlog: int) -> LedgerBalance:
        """Compare ledger and stream, then count the difference as `lost`.

        A new stream counts from 0, so the old stream's count is added to `entries_before`. If a count fell,
        but not to 0, the server restarted with older data (a failover, a log that lacks its end). Then the
        entries that the server forgot are added. Rollouts that were settled and are in the stream again come
        as duplicates; the same number of forgotten rollouts is then not counted as lost.
        """
        if self.ledger.entries_before > self.carried:
            self.last_entries_added = 0  # a predecessor has added that stream since our checkpoint
        reason = "unexplained"
        if self.stream_is_new or not entries_added:
            reason = "reset"
            self._carry(self.last_entries_added)
        elif entries_added < self.last_entries_added:
            reason = "rolled_back"
            self._carry(self.last_entries_added - entries_added)
        self.last_entries_added = entries_added
        self.stream_is_new = False
        imbalance = self.ledger.entries_before + entries_added - self.ledger.settled - backlog
        if imbalance > 0:
            self.ledger.add(Outcome.LOST, reason, entries=imbalance)
        # Settled after the last audit of a deleted stream, or settled and in the stream again.
        elif imbalance < 0:
            self._carry(-imbalance)
        self.carried = self.ledger.entries_before
        return LedgerBalance(
            entries_added=self.ledger.entries_before + entries_added,
            backlog=backlog,
            imbalance=imbalance,
            outcomes={outcome.value: self.ledger.of(outcome) for outcome in Outcome},
            settled_steps=self.ledger.settled_steps,
        )

    def _carry(self, entries: int) -> None:
        if entries:
            self.ledger.counts[ENTRIES_BEFORE] = self.ledger.entries_before + entries
