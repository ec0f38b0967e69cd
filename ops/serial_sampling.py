"""Samples the serial baseline's batches, with one collector or with the collectors of a lock-step fleet."""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from dppo_redis.environments.failures import until_it_passes
from dppo_redis.errors import EnvironmentBrokenError, StoppedError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.lock_step import LockStep, seed_boot
from dppo_redis.protocol.pacing import batch_is_full, rollouts_missing
from dppo_redis.protocol.rollout import Rollout, validate
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from workers.build import build_collector
from workers.failures import FailureCount
from workers.sampling.rollout_collector import RolloutCollector
from workers.sampling.vectorization import Chosen
from workers.watchdog import CallClock


class Sampling(Protocol):
    """Samples batches of rollouts for the baseline."""

    failure_count: FailureCount  # failures of the environments
    calls: CallClock  # times the environments' calls, for a watchdog
    whole_rollouts: int  # complete rollouts of the batch that is being sampled
    wanted_rollouts: int  # approximate number of rollouts in a batch

    def steps_done(self) -> int:
        """Steps done of the rollout that is being sampled, at most T. Any thread may call it."""
        ...

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> list[Rollout]:
        """Sample the rollouts of one batch. The next call overwrites the last rollout; the others are copies.

        Raises:
            StoppedError: a stop was requested meanwhile.
            EnvironmentBrokenError: the environments failed too often.
        """
        ...

    def close(self) -> None:
        """Free the environments."""
        ...


class PolicyHistory:
    """Makes data old on purpose: holds the policies of the last `age` updates and the present one."""

    def __init__(self, age: int) -> None:
        self._policies: deque[ActingPolicy] = deque(maxlen=age + 1)

    def behaviour(self, newest: ActingPolicy) -> ActingPolicy:
        """Add the present policy; returns the policy of `age` updates ago, or the first if there are
        fewer."""
        self._policies.append(newest)
        return self._policies[0]


def make_sampling(config: RunConfig, description: RunDescription, update: int = 0) -> Sampling:
    """Make one collector, or in lock-step mode one for each planned actor. The run begins at `update`."""
    plan = description.join.lock_step
    if plan is None:
        return OneCollector(description, config.ppo.batch_steps, seed_boot(update))
    return LockStepFleet(description, plan)


class RetryingCollector:
    """A collector that continues after broken environments and unusable rollouts, as an actor does."""

    def __init__(
        self,
        description: RunDescription,
        build: Callable[[int], RolloutCollector],
        failure_count: FailureCount,
    ) -> None:
        self._spec, self._retry_s = description.spec, description.join.env_retry_s
        self._build = build  # takes the number of failures in a row
        self._failure_count = failure_count
        self._collector: RolloutCollector | None = None

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> Rollout:
        """Sample the next rollout that passes all checks.

        Raises:
            StoppedError: a stop was requested meanwhile.
            EnvironmentBrokenError: the environments failed too often, or cannot be built.
        """
        while not stop.requested:
            if self._collector is None:
                build = partial(self._build, self._failure_count.failures)
                self._collector = until_it_passes(build, self._retry_s, stop)
            try:
                rollout = self._collector.collect(policy, stop)
                self._failure_count.sampled()
                validate(rollout, self._spec)
            except EnvironmentBrokenError as error:
                self._failure_count.count_failure(error)
                self.close()
                stop.sleep(self._failure_count.pause_s(error))
            except WireError as error:
                self._failure_count.refuse(error)
            else:
                self._failure_count.used()
                return rollout
        raise StoppedError("stopped between two rollouts")

    def steps_done(self) -> int:
        """Steps done of the running or last rollout."""
        collector = self._collector
        return 0 if collector is None else collector.steps_done

    def close(self) -> None:
        """Free the environments. The next `collect` builds new ones."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None


class OneCollector:
    """Samples with one collector until the batch is full."""

    def __init__(self, description: RunDescription, batch_steps: int, boot: int = 1) -> None:
        """A resumed run has another `boot`, so that it does not play the same episodes again."""
        builds, chosen = itertools.count(), Chosen()
        self.failure_count, self.calls = FailureCount(), CallClock()
        self._batch_steps = batch_steps
        self.whole_rollouts = 0
        rows = description.spec.rollout_steps * description.join.envs_per_actor
        self.wanted_rollouts = rollouts_missing(0, rows, batch_steps)
        self._collector = RetryingCollector(
            description,
            lambda _: build_collector(
                description,
                None,
                slot=0,
                boot=boot,
                builds=next(builds),
                calls=self.calls,
                role="serial",
                chosen=chosen,
            ),
            self.failure_count,
        )

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> list[Rollout]:
        rollouts: list[Rollout] = []
        while True:
            self.whole_rollouts = len(rollouts)
            rollout = self._collector.collect(policy, stop)
            rollouts.append(rollout)
            if batch_is_full(sum(r.steps for r in rollouts), rollout.steps, self._batch_steps):
                return rollouts
            rollouts[-1] = _copy(rollout)

    def steps_done(self) -> int:
        return self._collector.steps_done()

    def close(self) -> None:
        self._collector.close()


class LockStepFleet:
    """Samples with one collector for each actor of a lock-step run, one after another."""

    def __init__(self, description: RunDescription, plan: LockStep) -> None:
        self.failure_count, self.calls = FailureCount(), CallClock()
        self._plan = plan
        self._update: int | None = None
        chosen = Chosen()
        self.whole_rollouts = 0
        self.wanted_rollouts = plan.actors * plan.rollouts

        def build(slot: int, failures: int) -> RolloutCollector:
            boot = seed_boot(self._update or 0)
            return build_collector(description, None, slot, boot, failures, self.calls, "serial", chosen)

        self._collectors = [
            RetryingCollector(description, partial(build, slot), self.failure_count)
            for slot in range(plan.actors)
        ]

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> list[Rollout]:
        if self._plan.must_rebuild(policy.weights.update, self._update):
            self.close()
        self._update = policy.weights.update
        rollouts: list[Rollout] = []
        for collector in self._collectors:
            for _ in range(self._plan.rollouts):
                self.whole_rollouts = len(rollouts)
                rollouts.append(_copy(collector.collect(policy, stop)))
        return rollouts

    def steps_done(self) -> int:
        return self._collectors[self.whole_rollouts // self._plan.rollouts].steps_done()

    def close(self) -> None:
        for collector in self._collectors:
            collector.close()


def _copy(rollout: Rollout) -> Rollout:
    """A copy of the rollout. The collector's next call overwrites the original's buffers."""
    return replace(rollout, **{name: array.copy() for name, array in vars(rollout).items()})
