"""Decides when an actor samples, when it rebuilds its environments, and with which seeds.

There are two rules. `ElasticSampling` samples while the backlog is below its limit. `LockStepSampling`
samples a fixed number of rollouts for each update, then waits for the next weights. The rules take and return
values; the loop acts.
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
    """The questions that the actor's loop asks, in this order."""

    def may_start(self, snapshot: RunSnapshot) -> bool:
        """Whether the actor may check for new weights and sample, given the state in Redis."""
        ...

    def take_up(self, weights: Weights) -> list[Sent]:
        """Take these weights for sampling; returns rollouts of the same weights that must be sent again."""
        ...

    def is_due(self) -> bool:
        """Whether a rollout with the present weights is due."""
        ...

    def must_rebuild(self) -> bool:
        """Whether environments are rebuilt before the next rollout."""
        ...

    def build(self, failures: int) -> tuple[int, int]:
        """Note that environments are built now; returns (boot, builds), which determine their seeds.

        `failures` counts how often in a row environments broke before.
        """
        ...

    def sent(self, header: RolloutHeader, payload: bytes) -> None:
        """Note that a rollout was pushed."""
        ...


class ElasticSampling:
    """Samples while the backlog is below its limit; environments continue their episodes."""

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

    def must_rebuild(self) -> bool:
        return False

    def build(self, failures: int) -> tuple[int, int]:
        del failures
        self._builds += 1
        return self._boot, self._builds - 1

    def sent(self, header: RolloutHeader, payload: bytes) -> None:
        """Remember nothing: the next rollouts replace a lost one."""


@dataclass
class LockStepSampling:
    """Samples a fixed number of rollouts with each weights; slot and update alone determine environments.

    No other rollout can replace a lost one. So the rule keeps the rollouts of the present weights. A learner
    that misses some publishes the same weights under another version. Then the actor sends the rollouts
    again, under their own identities.
    """

    plan: LockStep
    _weights: Weights | None = None
    _sent: list[Sent] = field(default_factory=list)
    _must_rebuild: bool = True

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
        # Environments that have not sampled all rollouts of the last update have a wrong state.
        previous = None if before is None or self.is_due() else before.update
        self._must_rebuild = self._must_rebuild or self.plan.must_rebuild(weights.update, previous)
        self._sent = []
        return []

    def is_due(self) -> bool:
        return len(self._sent) < self.plan.rollouts

    def must_rebuild(self) -> bool:
        return self._must_rebuild

    def build(self, failures: int) -> tuple[int, int]:
        assert self._weights is not None
        self._must_rebuild = False
        return seed_boot(self._weights.update), failures

    def sent(self, header: RolloutHeader, payload: bytes) -> None:
        self._sent.append((header, payload))


def _are_equal(mine: Weights, theirs: Weights) -> bool:
    """Whether two publications hold the same weights of the same update, bit for bit."""
    return mine.update == theirs.update and all(
        np.array_equal(array, theirs.arrays[name]) for name, array in mine.arrays.items()
    )
