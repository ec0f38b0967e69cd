"""When an actor samples, and what its environments begin with.

Two rules: `ElasticSampling` samples whenever there is room; `LockStepSampling` gives its rollouts to each
update, then waits for the next weights. Values in, values out: the loop does what they say.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dppo_redis.protocol.lock_step import LockStep, seed_boot
from dppo_redis.protocol.rollout import RolloutHeader
from dppo_redis.protocol.weights import Weights
from dppo_redis.store.rollout_stream import RunSnapshot

Sent = tuple[RolloutHeader, bytes]  # header and payload of a rollout that was pushed


class SamplingRule(Protocol):
    """What the actor's loop asks, in this order."""

    def may_start(self, snapshot: RunSnapshot) -> bool:
        """Whether it is time to look at the weights and sample, as far as Redis shows."""
        ...

    def take_up(self, weights: Weights) -> list[Sent]:
        """These are the weights now; what was sampled with them and has to be sent again."""
        ...

    def is_due(self) -> bool:
        """Whether a rollout is wanted of the weights taken up."""
        ...

    def starts_anew(self) -> bool:
        """Whether environments are built anew before it."""
        ...

    def build(self, failures: int) -> tuple[int, int]:
        """Environments are built now; (boot, builds) that name their seeds.

        `failures` counts those that broke in a row just before.
        """
        ...

    def sent(self, header: RolloutHeader, payload: bytes) -> None:
        """A rollout was pushed."""
        ...


class ElasticSampling:
    """Sample while the backlog is low; the environments play on."""

    def __init__(self, boot: int) -> None:
        self._boot = boot
        self._builds = 0

    def may_start(self, snapshot: RunSnapshot) -> bool:
        return snapshot.backlog < snapshot.backlog_high

    def take_up(self, weights: Weights) -> list[Sent]:
        del weights
        return []

    def is_due(self) -> bool:
        return True

    def starts_anew(self) -> bool:
        return False

    def build(self, failures: int) -> tuple[int, int]:
        del failures
        self._builds += 1
        return self._boot, self._builds - 1

    def sent(self, header: RolloutHeader, payload: bytes) -> None:
        """Nothing to remember: what is lost is replaced by whatever comes next."""


@dataclass
class LockStepSampling:
    """A fixed number of rollouts of each weights; environments that follow from slot and update alone.

    A rollout of these weights that was lost on its way has no other substitute than itself. So it is
    kept, and sent again under its own identity once the same weights appear under another version:
    that is how a learner that has lost something asks for it.
    """

    plan: LockStep
    _weights: Weights | None = None
    _sent: list[Sent] = field(default_factory=list)
    _anew: bool = True

    def may_start(self, snapshot: RunSnapshot) -> bool:
        if snapshot.weights is None:
            return False
        return self._weights is None or snapshot.weights != self._weights.id or self.is_due()

    def take_up(self, weights: Weights) -> list[Sent]:
        before, self._weights = self._weights, weights
        if before is not None and before.id == weights.id:
            return []
        if before is not None and _are_equal(before, weights):
            self._sent = [
                (replace(header, epoch=weights.epoch, version=weights.version), payload)
                for header, payload in self._sent
            ]
            return list(self._sent)
        # Environments that have not played all of the last update are not where they should be.
        previous = None if before is None or self.is_due() else before.update
        self._anew = self._anew or self.plan.starts_anew(weights.update, previous)
        self._sent = []
        return []

    def is_due(self) -> bool:
        return len(self._sent) < self.plan.rollouts

    def starts_anew(self) -> bool:
        return self._anew

    def build(self, failures: int) -> tuple[int, int]:
        assert self._weights is not None
        self._anew = False
        return seed_boot(self._weights.update), failures

    def sent(self, header: RolloutHeader, payload: bytes) -> None:
        self._sent.append((header, payload))


def _are_equal(mine: Weights, theirs: Weights) -> bool:
    """Whether two publications hold the same weights of the same update, bit for bit."""
    return mine.update == theirs.update and all(
        np.array_equal(array, theirs.arrays[name]) for name, array in mine.arrays.items()
    )
