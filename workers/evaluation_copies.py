"""Builds the environments of evaluations, and measures a step to choose their number and processes.

The evaluator builds these copies once and keeps them. Slow copies that wait (for a simulator, a device, a
pause) step at the same time, each in its own process. There are at most as many computing copies as cores.
"""

import logging
import time
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from gymnasium.vector import VectorEnv

from dppo_redis.environments.assigned_episodes import make_assigned
from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.make import make_vector
from dppo_redis.environments.step_time import SLOW_STEP_S, CallCost, cores, measure_call, measure_steps
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from workers.envs import Environments
from workers.watchdog import CallClock

USUALLY_MOST = 20  # copies
_MOST_NATIVE = 64  # environments of a native vector version, which are stepped as one
_SLOW_RESET_S = 0.1
_WAITING_SHARE = 0.5  # computing share of a step's time; below it the copy waits for something
_FEWEST_PAUSES = 0.5
_MEASURED_STEPS = 8
_MEASURED_S = 0.2
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class StepCost:
    """The measured cost of one copy's step."""

    step_s: float  # median
    reset_s: float
    computing_share: float  # of a step's time; of the reset's time if only resets are slow
    pauses: float  # voluntary context switches of a step; of the reset if only resets are slow

    @property
    def is_slow(self) -> bool:
        """Whether a step is slow enough for a process of its own."""
        return self.step_s >= SLOW_STEP_S or self.reset_s >= _SLOW_RESET_S

    @property
    def waits(self) -> bool:
        """Whether the copy waits during a step, so that other copies can use its core.

        On a busy machine a step that only computes also takes longer than its computing time, but it never
        pauses.
        """
        return self.computing_share < _WAITING_SHARE and self.pauses >= _FEWEST_PAUSES


@dataclass(frozen=True)
class Choice:
    """The number of copies, and whether each runs in its own process."""

    count: int  # copies
    in_processes: bool


def choose(cost: StepCost, episodes: int, environments: int | None, cores: int) -> Choice:
    """Choose the copies' number and place; `environments` is their configured number, None if not set."""
    most = environments
    if most is None:
        most = USUALLY_MOST if cost.waits or not cost.is_slow else min(USUALLY_MOST, cores)
    count = min(episodes, most)
    worthwhile = cost.is_slow and count > 1 and (cost.waits or cores > 1)
    return Choice(count, in_processes=worthwhile)


class EvaluationCopies:
    """The copies of one evaluator: built at the first use, closed and rebuilt after a failure."""

    def __init__(self, description: RunDescription, calls: CallClock | None = None) -> None:
        self._description = description
        self._calls = calls or CallClock()
        self._environments: Environments | None = None
        self._choice: Choice | None = None  # None: not measured yet
        self._is_native = False
        self._waits = False

    @property
    def are_native(self) -> bool:
        """Whether a native vector version steps all copies as one, so that episodes have no own seeds."""
        return self._is_native

    def get(self, policy: ActingPolicy, episodes: int, stop: StopRequest) -> Environments:
        """The copies for `episodes`; `policy` acts while a step is measured.

        Raises:
            EnvironmentBrokenError: the copies cannot be built, or raise.
            StoppedError: a stop was requested meanwhile.
        """
        if self._choice is None:
            self._choice = self._measure_copy(policy, episodes, stop)
        count = min(self._choice.count, episodes)
        if self._environments is not None and self._environments.count != count:
            self.close()
        if self._environments is None:
            self._environments = self._build(count, in_processes=self._choice.in_processes)
        return self._environments

    @property
    def steps_wait(self) -> bool:
        """Whether the copies wait during a step, so that cores are free meanwhile."""
        return self._waits

    def cpu_s(self) -> float:
        """Computing time so far, in seconds, of this process and of the copies' processes."""
        return time.process_time() + sum(_cpu_s_of(one.pid) for one in list(self._calls.processes))

    def close(self) -> None:
        """Close the copies; `get` builds new ones."""
        if self._environments is not None:
            self._environments.close()
            self._environments = None

    def _measure_copy(self, policy: ActingPolicy, episodes: int, stop: StopRequest) -> Choice:
        """Measure one copy and choose, unless there is a native vector version."""
        join = self._description.join
        probe = self._make(1, "auto" if join.vectorization == "auto" else "one")
        try:
            self._is_native = not hasattr(probe.vector, "env_fns")
            if self._is_native:
                return Choice(join.evaluation_environments or _MOST_NATIVE, in_processes=False)
            cost = measure(probe, policy, stop)
        finally:
            probe.close()
        choice = choose(cost, episodes, join.evaluation_environments, cores())
        self._waits = cost.is_slow and cost.waits
        if choice.in_processes:
            _log.info(
                "evaluation: %d copies at the same time, as a step takes %.1f ms (%.0f %% of it computing)",
                *(choice.count, 1000 * cost.step_s, 100 * cost.computing_share),
            )
        return choice

    def _build(self, count: int, *, in_processes: bool) -> Environments:
        if self._is_native:
            return self._make(count, "auto")
        return self._make(count, "processes" if in_processes else "here")

    def _make(self, count: int, how: Literal["auto", "one", "here", "processes"]) -> Environments:
        """Build copies: `auto` and `one` play without end, `here` and `processes` play assigned episodes."""
        source, masked = self._description.evaluated, self._description.spec.observation.masked
        vector: VectorEnv[Any, Any, Any]
        self._calls.start()  # building may hang
        try:
            if how in ("auto", "one"):
                vector = make_vector(
                    source,
                    count,
                    "auto" if how == "auto" else "sync",
                    masked=masked,
                    number=CopyNumber("evaluator"),
                )
            else:
                vector = make_assigned(source, count, in_processes=how == "processes", masked=masked)
        except ConfigurationError as error:  # the inspection could build it, so this may pass
            raise EnvironmentBrokenError(str(error)) from error
        finally:
            self._calls.stop()
        return Environments(vector, [0] * count, self._calls)


def measure(environments: Environments, policy: ActingPolicy, stop: StopRequest) -> StepCost:
    """Measure a reset and some steps of environments.

    Raises:
        EnvironmentBrokenError: they raised.
        StoppedError: a stop was requested meanwhile.
    """
    observations, reset = measure_call(environments.reset)
    state = PolicyState(policy.spec, observations)

    def take_step() -> CallCost:
        if stop.requested:
            raise StoppedError("stopped before an evaluation")
        actions = policy.action.to_environment(policy.actions(state.outputs(policy), None))
        step, cost = measure_call(lambda: environments.step(actions))
        state.observe(step.observations, step.begins)
        return cost

    steps = measure_steps(take_step, _MEASURED_STEPS, _MEASURED_S)
    step_s = median(cost.wall_s for cost in steps)
    # The first step may prepare something, so it counts only if it is the only one.
    measured = (steps[1:] or steps) if step_s >= SLOW_STEP_S else [reset]
    wall_s, cpu_s = fmean(cost.wall_s for cost in measured), fmean(cost.cpu_s for cost in measured)
    return StepCost(step_s, reset.wall_s, cpu_s / wall_s, fmean(cost.pauses for cost in measured))


def _cpu_s_of(pid: int | None) -> float:
    """Computing time of another process, in seconds; 0 if the system does not say it."""
    try:
        return 0.0 if pid is None else time.clock_gettime(~pid << 3 | 2)  # Linux: clock_getcpuclockid(3)
    except OSError:
        return 0.0
