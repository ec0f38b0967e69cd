"""Decides whether actors sample a spare batch ahead, at the price of older data.

A pure rule; the keeper's thread asks it once a round.
"""

_WAITS = 0.05  # share of its time that a learner may wait before actors sample a spare batch
_HELD_UPDATES = 200


class SpareBatch:
    """Wants a spare batch for 200 updates after the learner last waited for rollouts, then tries without one.

    A fleet of unequal actors that is just fast enough needs a whole spare batch. If the learner is busy all
    the time, a spare batch only makes data older.
    """

    def __init__(self) -> None:
        self._until_update = 0

    def wanted(self, wait_share: float, update: int) -> bool:
        """Whether actors sample a spare batch; `wait_share` is the learner's recent share of waiting."""
        if wait_share > _WAITS:
            self._until_update = update + _HELD_UPDATES
        return update < self._until_update
