"""Which rollouts make a batch, decided from their headers alone. Pure.

Two rules: `ElasticBatch` takes rollouts of any actor until the batch is full; `LockStepBatch`
takes the planned number from each planned slot and orders them, whatever their arrival.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.protocol.pacing import batch_is_full, rollouts_missing
from dppo_redis.protocol.rollout import RolloutHeader

Headers = Sequence[RolloutHeader]  # of the rollouts gathered for a batch, in order of arrival


class BatchRule(Protocol):
    """What the intake asks."""

    def missing(self, gathered: Headers) -> int:
        """About how many more rollouts fill the batch; 0 when it is full."""
        ...

    def refusal(self, header: RolloutHeader, gathered: Headers) -> str | None:
        """Why a fresh rollout is not wanted in this batch; None where it is."""
        ...

    def order(self, gathered: Headers) -> list[int]:
        """Places in `gathered` of the rollouts of a full batch, in the order they are trained in."""
        ...


class ElasticBatch:
    """As near to `batch_steps` valid rows as whole rollouts come, in order of arrival."""

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
    """The same number of rollouts from each planned slot, ordered by slot and sequence.

    Those of a slot come from one boot: where an actor died amid its rollouts, its successor's count.
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
        """Of each slot the boot that has sent most, and how much; the first of equals."""
        leading: dict[int, tuple[str, int]] = {}
        for (slot, boot), count in Counter((header.actor, header.boot) for header in gathered).items():
            if count > leading.get(slot, ("", 0))[1]:
                leading[slot] = boot, count
        return leading
