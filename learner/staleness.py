"""Keep or drop: the rule that judges a rollout from its header alone. Pure."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of a rollout before it is unpacked."""

    FRESH = "fresh"
    STALE = "stale"
    FROM_THE_FUTURE = "from_the_future"  # refused
    LOST_LINEAGE = "lost_lineage"  # refused: sampled with weights that a restart abandoned


@dataclass(frozen=True)
class Lineage:
    """The (epoch, update at its start) pairs that led to the present weights, oldest first."""

    starts: tuple[tuple[int, int], ...] = ()

    def begin(self, epoch: int, update: int) -> "Lineage":
        """The lineage after a learner took `epoch` at `update`."""
        return Lineage((*self.starts, (epoch, update)))

    def contains(self, epoch: int, update: int) -> bool:
        """Whether weights of (epoch, update) are ancestors of the present ones.

        Their epoch must be listed, and their update not beyond the start of any later epoch.
        """
        if all(listed != epoch for listed, _ in self.starts):
            return False
        return all(update <= start for later, start in self.starts if later > epoch)


def judge(epoch: int, update: int, *, lineage: Lineage, learner_update: int, max_staleness: int) -> Verdict:
    """Say whether a rollout may be trained on; staleness is counted in updates, limit inclusive."""
    if not lineage.contains(epoch, update):
        return Verdict.LOST_LINEAGE
    staleness = learner_update - update
    if staleness < 0:
        return Verdict.FROM_THE_FUTURE
    return Verdict.FRESH if staleness <= max_staleness else Verdict.STALE
