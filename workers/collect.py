"""Samples rollouts with a policy and environments: the hot path of actors and of the serial baseline.

Each step runs the policy once for all N environments. Log-probabilities are computed once per rollout, and
arrays are allocated once. This module knows neither Redis nor the learner.
"""

import logging
from dataclasses import replace

import numpy as np

from dppo_redis.errors import StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.protocol.rollout import Rollout, allocate
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.episode_metrics import to_arrays
from dppo_redis.spaces.observations import Array, FloatArray
from workers.envs import Environments
from workers.sampling.metric_names import MetricNames
from workers.sampling.rollout_collector import RolloutCollector
from workers.sampling.running_episodes import RunningEpisodes, first_steps
from workers.sampling.step_records import StepRecords
from workers.sampling.vectorization import kind_of
from workers.seeding import ActorSeeds
from workers.separate.one_environment import check_rows
from workers.separate.separate_environments import Kind

_log = logging.getLogger("dppo")


class Collector:
    """Environments, their running episodes, and the buffers a rollout is written into.

    Raises:
        EnvironmentBrokenError: the environments cannot be reset, or have other observations than the run.
    """

    def __init__(self, environments: Environments, spec: Spec, seeds: ActorSeeds) -> None:
        check_rows(environments.observation, spec.observation)
        self.environments = environments
        self.spec = spec
        self._generator = np.random.default_rng(seeds.sampling)
        self._buffers = allocate(spec, environments.count)
        self._records = StepRecords(environments, self._buffers)
        shape = (spec.rollout_steps, environments.count, spec.action.outputs)  # T, N, logits and means
        self._outputs = np.empty(shape, np.float32)
        self._state = PolicyState(spec, environments.reset())
        self._episodes = RunningEpisodes(environments.count, spec.return_discount)
        self._metrics = MetricNames()
        self.wanted_steps = spec.rollout_steps  # at least 1; may be set at any time, from any thread
        self.steps_done = 0  # steps so far of the running rollout, or of the last one

    def collect(self, policy: ActingPolicy, stop: StopRequest | None = None) -> Rollout:
        """Sample T steps of N environments with one policy; fewer if `wanted_steps` is lower.

        The rollout's arrays are this collector's buffers: use or copy them before the next call.

        Raises:
            StoppedError: a stop was requested meanwhile; the partial rollout is dropped.
            EnvironmentBrokenError: the environment raised.
        """
        buffers, state = self._buffers, self._state
        length = min(self.wanted_steps, self.spec.rollout_steps)
        noise = policy.noise(self._generator, length, self.environments.count)
        state.forget_nonfinite()
        before = state.frames_before, state.memory
        observations, actions, records = buffers.observations, buffers.actions, self._records
        records.begin()
        self.steps_done = 0
        for t in range(length):
            if self.steps_done >= self.wanted_steps:
                break  # `wanted_steps` was set during this rollout
            if stop is not None and stop.requested:
                raise StoppedError("stopped in the middle of a rollout")
            observations[t] = state.newest
            outputs = state.outputs(policy, self._outputs[t])
            rows = policy.sample(outputs, noise[t], actions[t])
            newest = records.step(t, policy.action.to_environment(rows))
            if state.remembers:
                state.observe(newest, records.begins(t))
            else:
                state.newest = newest
            self.steps_done = t + 1
        return self._finish(policy, *before)

    @property
    def vectorization(self) -> Kind:
        """How the environments are stepped."""
        return kind_of(self.environments.vector)

    @property
    def step_ms(self) -> float | None:
        """Mean time of one environment's step, in ms; for a native vector version, of all environments."""
        return self.environments.step_ms

    @property
    def refused_metrics(self) -> int:
        """How many numbers of ended episodes were left out because of their names, so far."""
        return self._metrics.refused

    def close(self) -> None:
        """Free the environments."""
        self.environments.close()

    def _finish(self, policy: ActingPolicy, frames_before: Array, memory: FloatArray) -> Rollout:
        final_observations, metrics = self._records.finish(self.steps_done, self._state.newest)
        buffers = first_steps(self._buffers, self.steps_done)
        totals = self._episodes.add(buffers)
        return replace(
            buffers,
            log_probs=policy.log_probs(self._outputs[: self.steps_done], buffers.actions),
            final_observations=final_observations,
            last_observations=self._state.newest,
            frames_before=frames_before,
            memory=memory,
            **totals._asdict(),
            metrics=to_arrays(metrics, self._metrics.known(metrics)),
        )


def with_progress(report: ActorReport, collector: RolloutCollector, rollout_s: float) -> ActorReport:
    """The report with fields of environments and of the running or last rollout, of `rollout_s` seconds."""
    return replace(
        report,
        vectorization=collector.vectorization,
        step_ms=collector.step_ms,
        rollout_steps=collector.wanted_steps,
        rollout_steps_done=collector.steps_done,
        rollout_s=rollout_s,
        refused_metrics=collector.refused_metrics,
    )
