"""Samples rollouts with a policy and environments: the hot path of actors and of the serial baseline.

Each step runs the policy once for all N environments. Log-probabilities are computed once per rollout, and
arrays are allocated once. This module knows neither Redis nor the learner.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dppo_redis.errors import EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.protocol.rollout import LAYOUTS, Rollout, allocate
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.episode_metrics import EpisodeMetrics, to_arrays
from dppo_redis.spaces.metric_names import MAX_NAME, MAX_NAMES
from dppo_redis.spaces.normaliser import discounted_returns
from dppo_redis.spaces.observations import Array, BoolArray, FloatArray
from workers.envs import Environments
from workers.rollout.records import StepRecords
from workers.seeding import ActorSeeds
from workers.vectorization import kind_of

_log = logging.getLogger("dppo")


class Collector:
    """Environments, their running episodes, and the buffers a rollout is written into.

    Raises:
        EnvironmentBrokenError: the environments cannot be reset, or have other observations than the run.
    """

    def __init__(self, environments: Environments, spec: Spec, seeds: ActorSeeds) -> None:
        rows, wanted = environments.observation, spec.observation
        if (rows.row_dtype, rows.row_shape) != (wanted.row_dtype, wanted.row_shape):
            raise EnvironmentBrokenError(
                f"this environment observes {rows.row_dtype} {rows.row_shape}, "
                f"the run {wanted.row_dtype} {wanted.row_shape}"
            )
        self.environments = environments
        self.spec = spec
        self._generator = np.random.default_rng(seeds.sampling)
        self._buffers = allocate(spec, environments.count)
        self._records = StepRecords(environments, self._buffers)
        shape = (spec.rollout_steps, environments.count, spec.action.outputs)  # T, N, logits and means
        self._outputs = np.empty(shape, np.float32)
        self._state = PolicyState(spec, environments.reset())
        self._returns = np.zeros(environments.count)  # of the running episodes, float64
        self._discounted = np.zeros(environments.count)  # the same, discounted, where the spec asks for it
        self._lengths = np.zeros(environments.count, dtype=np.int64)
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
    def refused_metrics(self) -> int:
        """How many numbers of ended episodes were left out because of their names, so far."""
        return self._metrics.refused

    def close(self) -> None:
        """Free the environments."""
        self.environments.close()

    def _finish(self, policy: ActingPolicy, frames_before: Array, memory: FloatArray) -> Rollout:
        final_observations, metrics = self._records.finish(self.steps_done, self._state.newest)
        buffers = _first_steps(self._buffers, self.steps_done)
        episode_returns, episode_lengths = self._episodes(buffers)
        discounted = self._discounted
        if self.spec.return_discount is not None:
            ends = buffers.terminated | buffers.truncated
            _, self._discounted = discounted_returns(
                discounted, buffers.rewards, ends, buffers.valid, self.spec.return_discount
            )
            # A reward that is not finite spoils only its own rollout, as for a running return.
            self._discounted = np.nan_to_num(self._discounted, nan=0, posinf=0, neginf=0)
        return replace(
            buffers,
            log_probs=policy.log_probs(self._outputs[: self.steps_done], buffers.actions),
            final_observations=final_observations,
            last_observations=self._state.newest,
            frames_before=frames_before,
            memory=memory,
            discounted_returns=discounted,
            episode_returns=episode_returns,
            episode_lengths=episode_lengths,
            metrics=to_arrays(metrics, self._metrics.known(metrics)),
        )

    def _episodes(self, buffers: Rollout) -> tuple[FloatArray, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Returns and lengths [E] of the ended episodes, in row order; keeps those of the running ones."""
        returns = self._returns + np.cumsum(buffers.rewards, axis=0, dtype=np.float64)
        lengths = self._lengths + np.cumsum(buffers.valid, axis=0)
        ended = buffers.terminated | buffers.truncated
        places = np.nonzero(ended)[1]
        by_place = np.argsort(places.astype(np.uint16), kind="stable")  # small numbers: in linear time
        same = np.diff(places[by_place], prepend=-1) == 0  # not the first end of its environment
        episode_returns = _since_previous(returns[ended], by_place, same)
        episode_lengths = _since_previous(lengths[ended], by_place, same)
        last_end = np.zeros_like(self._returns), np.zeros_like(self._lengths)
        last_end[0][places[by_place]] = returns[ended][by_place]  # the latest end wins
        last_end[1][places[by_place]] = lengths[ended][by_place]
        with np.errstate(invalid="ignore"):
            # An infinite reward spoils only its own episode.
            self._returns = np.nan_to_num(returns[-1] - last_end[0], nan=0, posinf=0, neginf=0)
        self._lengths = lengths[-1] - last_end[1]
        return episode_returns.astype(np.float32), episode_lengths.astype(np.int32)


class MetricNames:
    """The first 32 names of metrics, in order of appearance; counts and logs numbers that are left out."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._rate_limit = RateLimit()
        self.refused = 0  # numbers that were left out because of their names

    def known(self, episodes: Sequence[EpisodeMetrics]) -> tuple[str, ...]:
        """The known names, extended by those of these episodes."""
        left_out: list[str] = []
        for episode in episodes:
            for name, _ in episode.numbers:
                if name in self._names or len(self._names) < MAX_NAMES:
                    self._names[name] = None
                else:
                    left_out.append(name)
            left_out += episode.refused
        self.refused += len(left_out)
        if left_out and self._rate_limit.due():
            _log.warning(
                "%d numbers of the environment are left out, the first is named %s: a name is an identifier "
                "of at most %d characters, and a run has at most %d names",
                self.refused,
                left_out[0],
                MAX_NAME,
                MAX_NAMES,
            )
        return tuple(self._names)


def with_progress(report: ActorReport, collector: Collector, rollout_s: float) -> ActorReport:
    """The report with fields of environments and of the running or last rollout, of `rollout_s` seconds."""
    return replace(
        report,
        vectorization=kind_of(collector.environments.vector),
        step_ms=collector.environments.step_ms,
        rollout_steps=collector.wanted_steps,
        rollout_steps_done=collector.steps_done,
        rollout_s=rollout_s,
        refused_metrics=collector.refused_metrics,
    )


def _first_steps(buffers: Rollout, steps: int) -> Rollout:
    """The part of the buffers that was written."""
    if steps == len(buffers.rewards):
        return buffers
    parts = {n: getattr(buffers, n)[:steps] for n, layout in LAYOUTS.items() if layout.axes == "TN"}
    return replace(buffers, **parts)


def _since_previous(totals: Array, by_place: Array, same: BoolArray) -> Array:
    """Each total minus the total at the previous end of the same environment, in row order."""
    ordered = totals[by_place]
    with np.errstate(invalid="ignore"):  # infinity minus infinity: the rollout will be refused
        ordered[1:] -= np.where(same[1:], totals[by_place][:-1], 0)
    result = np.empty_like(ordered)
    result[by_place] = ordered
    return result
