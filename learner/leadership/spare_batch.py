"""When actors sample a spare batch ahead, and when fresh data are worth more.

A pure rule; the keeper's thread asks it once a round.
"""

_WAITS = 0.05  # share of its time that a learner may wait before it is given a spare batch
_HELD_UPDATES = 200


class SpareBatch:
    """Remembers that the learner had to wait for rollouts; whether it still would is tried now and then.

    An uneven fleet that is just fast enough needs a whole batch to spare. Behind a learner that is busy
    all the time it only makes data older.
    """

    def __init__(self) -> None:
        self._until_update = 0

    def wanted(self, wait_share: float, update: int) -> bool:
        """Whether to keep one; `wait_share` is the learner's of late."""
        if wait_share > _WAITS:
            self._until_update = update + _HELD_UPDATES
        return update < self._until_update
