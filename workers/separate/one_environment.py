"""Plays one environment for a row of a page: reset, step, automatic reset in the same step.

It runs in the environment's process or thread. It knows neither the policy nor the other environments.
"""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.make import make_plain
from dppo_redis.errors import DppoError, EnvironmentBrokenError
from dppo_redis.protocol.spec import EnvironmentSource, Spec
from dppo_redis.service.plugins import first_line
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.episode_metrics import NOTHING, REPORTED, EpisodeMetrics
from dppo_redis.spaces.gymnasium_spaces import describe_observations
from dppo_redis.spaces.observations import Array, ObservationSpec
from workers.separate.step_page import REPORTS, TERMINATED, TRUNCATED, StepPage

LEAVING = (SystemExit, KeyboardInterrupt)  # failures, too, if the user's code raises them


@dataclass(frozen=True)
class EnvironmentPlan:
    """How one environment is built, seeded, read and acted on."""

    source: EnvironmentSource
    observation: ObservationSpec
    action: ActionSpec
    number: CopyNumber
    seed: int
    place: int  # its row

    @staticmethod
    def of(spec: Spec, seeds: list[int], number: CopyNumber) -> "list[EnvironmentPlan]":
        """The plans of all environments of a collector, numbered from `number` on."""
        return [
            EnvironmentPlan(
                spec.environment,
                spec.observation,
                spec.action,
                replace(number, copy=number.copy + place),
                seed,
                place,
            )
            for place, seed in enumerate(seeds)
        ]


class OneEnvironment:
    """One environment, built here, that writes into its row.

    Raises:
        ConfigurationError, EnvironmentBrokenError: it cannot be built, or shows other rows than the run.
    """

    def __init__(self, plan: EnvironmentPlan, page: StepPage) -> None:
        self._plan, self._page, self._place = plan, page, plan.place
        self._env: gymnasium.Env[Any, Any] = make_plain(plan.source, plan.observation.masked, plan.number)
        self._space = self._env.observation_space
        check_rows(describe_observations(self._space), plan.observation)
        self._buffer: Any = create_empty_array(self._space, n=1)
        self._actions = batch_space(self._env.action_space, 1)
        self._pid = os.getpid()

    def reset(self) -> None:
        """Seed it and begin its first episode."""
        page, place = self._page, self._place
        observation, _ = self._env.reset(seed=self._plan.seed)
        self._stay()
        page.observations[place] = self._pack(observation)
        page.flags[place] = 0

    def step(self) -> EpisodeMetrics:
        """Take the row's action; returns the metrics of the episode that ended, if any."""
        page, place = self._page, self._place
        action = self._plan.action.to_environment(page.actions[place : place + 1])
        began = time.perf_counter()
        observation, reward, terminated, truncated, info = self._env.step(
            next(iterate(self._actions, action))
        )
        page.stepping_s[place] += time.perf_counter() - began
        page.steps[place] += 1
        flags, metrics = 0, NOTHING
        if terminated or truncated:
            page.finals[place] = self._pack(observation)
            metrics = info.get(REPORTED, NOTHING)
            flags = TERMINATED * bool(terminated) | TRUNCATED * bool(truncated)
            flags |= REPORTS * (metrics is not NOTHING)
            observation, _ = self._env.reset()
        self._stay()
        page.observations[place] = self._pack(observation)
        page.rewards[place] = reward
        page.flags[place] = flags
        return metrics

    def close(self) -> None:
        """Free it."""
        self._env.close()

    def _pack(self, observation: Any) -> Array:
        """Its row; gymnasium refuses an observation of another shape, as in its vectors."""
        rows = concatenate(self._space, (observation,), self._buffer)
        packed: Array = self._plan.observation.pack(rows, (1,))[0]
        return packed

    def _stay(self) -> None:
        """End the copy of this process that the user's code forked, if it comes back."""
        if os.getpid() != self._pid:
            os._exit(1)


def describe_failure(error: BaseException, doing: str) -> str:
    """One line: what an environment raised, and in which call."""
    if isinstance(error, DppoError):
        return str(error)
    return f"{doing} raised {type(error).__name__}: {first_line(error)}"


def check_rows(found: ObservationSpec, wanted: ObservationSpec) -> None:
    """Refuse an environment whose observations have another form than the run's.

    Raises:
        EnvironmentBrokenError: they have.
    """
    if (found.row_dtype, found.row_shape) != (wanted.row_dtype, wanted.row_shape):
        raise EnvironmentBrokenError(
            f"this environment observes {found.row_dtype} {found.row_shape}, "
            f"the run {wanted.row_dtype} {wanted.row_shape}"
        )
