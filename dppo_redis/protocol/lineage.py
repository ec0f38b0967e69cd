"""Which published weights led to the present ones. Pure; the checkpoint keeps it."""

from dataclasses import dataclass


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
