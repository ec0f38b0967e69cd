"""The ancestors of the present weights, and the versions that were published. Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Lineage:
    """The (epoch, update at its start) pairs that led to the present weights, oldest first.

    The checkpoint keeps it.
    """

    starts: tuple[tuple[int, int], ...] = ()

    def begin(self, epoch: int, update: int) -> "Lineage":
        """The lineage after a learner took `epoch` at `update`."""
        return Lineage((*self.starts, (epoch, update)))

    def contains(self, epoch: int, update: int) -> bool:
        """Whether weights of (epoch, update) are ancestors of the present ones.

        Their epoch must be listed, and their update must not be after the start of a later epoch.
        """
        if all(listed != epoch for listed, _ in self.starts):
            return False
        return all(update <= start for later, start in self.starts if later > epoch)


@dataclass(frozen=True)
class PublishedVersions:
    """The versions that may have been published, in the present epoch and in earlier ones.

    Versions only grow, so that limits describe them. A version counts before the learner publishes it,
    because the reply may be lost.
    """

    epoch: int = 0  # the present one; 0 before the first publication
    before: int = 0  # highest that earlier epochs may have used
    first: int = 0  # lowest of the present epoch
    newest: int = 0  # highest of the present epoch

    def cover(self, epoch: int, version: int) -> "PublishedVersions":
        """The published versions, extended by `version` of `epoch`."""
        if epoch == self.epoch:
            return replace(self, newest=max(self.newest, version))
        return PublishedVersions(epoch, max(self.before, self.newest, version - 1), version, version)

    def beyond(self, stored: int) -> "PublishedVersions":
        """The published versions, given that the server holds version `stored` of any publisher."""
        return replace(self, before=max(self.before, stored))

    def contains(self, epoch: int, version: int) -> bool:
        """Whether `epoch`, the present one or an ancestor of it, may have published `version`."""
        if epoch == self.epoch:
            return self.first <= version <= self.newest
        return 1 <= version <= self.before
