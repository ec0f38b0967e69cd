"""How the serial baseline samples a batch: with one collector, or with those of a lock-step fleet in turn."""

from dataclasses import replace
from typing import Protocol

from dppo_redis.acting import ActingPolicy
from dppo_redis.config import RunConfig
from dppo_redis.lock_step import LockStep, seed_boot
from dppo_redis.pacing import batch_is_full
from dppo_redis.rollout import Rollout, validate
from dppo_redis.shutdown import StopRequest
from dppo_redis.spec import RunDescription
from workers.__main__ import build_collector
from workers.collect import Collector


class Sampling(Protocol):
    """What the baseline asks."""

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> list[Rollout]:
        """The rollouts of one batch; all but the last are copies, use that one before the next call.

        Raises:
            StoppedError: a stop was requested meanwhile.
        """
        ...

    def close(self) -> None:
        """Free the environments."""
        ...


def make_sampling(config: RunConfig, description: RunDescription) -> Sampling:
    """One collector, or in lock-step mode one for each planned actor."""
    plan = description.join.lock_step
    if plan is None:
        return OneCollector(description, config.ppo.batch_steps)
    return LockStepFleet(description, plan)


class OneCollector:
    """Samples until the batch is full."""

    def __init__(self, description: RunDescription, batch_steps: int) -> None:
        self._spec = description.spec
        self._batch_steps = batch_steps
        self._collector = build_collector(description, None, slot=0, boot=1, builds=0)

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> list[Rollout]:
        rollouts: list[Rollout] = []
        while True:
            rollout = self._collector.collect(policy, stop)
            validate(rollout, self._spec)
            rollouts.append(rollout)
            if batch_is_full(sum(r.steps for r in rollouts), rollout.steps, self._batch_steps):
                return rollouts
            rollouts[-1] = _copy(rollout)

    def close(self) -> None:
        self._collector.close()


class LockStepFleet:
    """Samples as the actors of a lock-step run do, one after the other."""

    def __init__(self, description: RunDescription, plan: LockStep) -> None:
        self._description = description
        self._plan = plan
        self._collectors: list[Collector] = []
        self._update: int | None = None

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> list[Rollout]:
        if self._plan.starts_anew(policy.weights.update, self._update):
            self._build(policy.weights.update)
        self._update = policy.weights.update
        rollouts = []
        for collector in self._collectors:
            for _ in range(self._plan.rollouts):
                rollout = collector.collect(policy, stop)
                validate(rollout, self._description.spec)
                rollouts.append(_copy(rollout))
        return rollouts

    def _build(self, update: int) -> None:
        self.close()
        for slot in range(self._plan.actors):
            self._collectors.append(
                build_collector(self._description, None, slot, seed_boot(update), builds=0)
            )

    def close(self) -> None:
        while self._collectors:
            self._collectors.pop().close()


def _copy(rollout: Rollout) -> Rollout:
    """A rollout that outlives the collector's next call, which writes into the same buffers."""
    return replace(rollout, **{name: array.copy() for name, array in vars(rollout).items()})
