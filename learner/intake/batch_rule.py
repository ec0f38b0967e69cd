"""Decides from their headers which rollouts make a batch. Pure.

Two rules: `ElasticBatch` takes rollouts of any actor until the batch is full; `LockStepBatch`
takes the planned number from each planned slot, and its order does not depend on the order of arrival.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.protocol.pacing import batch_is_full, rollouts_missing
from dppo_redis.protocol.rollout import RolloutHeader

Headers = Sequence[RolloutHeader]  # of the rollouts gathered for a batch, in order of arrival


class BatchRule(Protocol):
    """The questions that the intake asks about a batch."""

    def missing(self, gathered: Headers) -> int:
        """About how many more rollouts fill the batch; 0 when it is full."""
        ...

    def refusal(self, header: RolloutHeader, gathered: Headers) -> str | None:
        """The reason why this batch refuses a fresh rollout; None if it takes the rollout."""
        ...

    def order(self, gathered: Headers) -> list[int]:
        """Indices in `gathered` of a full batch's rollouts, in the order of training."""
        ...


class ElasticBatch:
    """Takes whole rollouts in order of arrival, as near to `batch_steps` valid rows as possible."""

    def __init__(self, batch_steps: int, planned_rows: int) -> None:
        self._batch_steps = batch_steps
        self._last_rows = planned_rows  # of the newest rollout

    def missing(self, gathered: Headers) -> int:
        rows = sum(header.steps for header in gathered)
        if gathered:
            self._last_rows = gathered[-1].steps
        if batch_is_full(rows, self._last_rows, self._batch_steps):
            return 0
        return rollouts_missing(rows, self._last_rows, self._batch_steps)

    def refusal(self, header: RolloutHeader, gathered: Headers) -> str | None:
        del header, gathered
        return None

    def order(self, gathered: Headers) -> list[int]:
        return list(range(len(gathered)))


class LockStepBatch:
    """Takes the same number of rollouts from each planned slot, ordered by slot and sequence.

    All rollouts of a slot come from one boot: if an actor died amid them, those of the next boot count.
    """

    def __init__(self, plan: LockStep) -> None:
        self._plan = plan

    def missing(self, gathered: Headers) -> int:
        boots = self._leading_boots(gathered)
        return sum(self._plan.rollouts - boots.get(slot, ("", 0))[1] for slot in range(self._plan.actors))

    def refusal(self, header: RolloutHeader, gathered: Headers) -> str | None:
        if header.actor >= self._plan.actors:
            return "unplanned_slot"
        _, count = self._leading_boots(gathered).get(header.actor, ("", 0))
        return "surplus" if count >= self._plan.rollouts else None

    def order(self, gathered: Headers) -> list[int]:
        boots = self._leading_boots(gathered)
        wanted = [i for i, header in enumerate(gathered) if header.boot == boots[header.actor][0]]
        return sorted(wanted, key=lambda i: (gathered[i].actor, gathered[i].seq))

    @staticmethod
    def _leading_boots(gathered: Headers) -> dict[int, tuple[str, int]]:
        """For each slot the boot with most rollouts, the first of equals, and their number."""
        leading: dict[int, tuple[str, int]] = {}
        for (slot, boot), count in Counter((header.actor, header.boot) for header in gathered).items():
            if count > leading.get(slot, ("", 0))[1]:
                leading[slot] = boot, count
        return leading
