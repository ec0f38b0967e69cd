"""The environments in which evaluations are played: how many, and whether in processes of their own.

They are built once and kept. A step is measured first: slow copies that wait (for a simulator, a device, a
pause) are stepped at the same time, each in its process; of those that compute there are no more than cores.
"""

import logging
import resource
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv

from dppo_redis.environments.assigned_episodes import make_assigned
from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.make import make_vector
from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.observations import Array
from workers.envs import Environments
from workers.watchdog import CallClock

USUALLY_MOST = 20  # copies
_MOST_NATIVE = 64  # environments of a native vector version, which are stepped as one
_SLOW_STEP_S = 0.001  # a faster one costs less than talking to the process it would run in
_SLOW_RESET_S = 0.1
_WAITING_SHARE = 0.5  # of a step's time that is computing: below it a copy waits for something
_FEWEST_PAUSES = 0.5
_MEASURED_STEPS = 8
_MEASURED_S = 0.2
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class StepCost:
    """What one copy costs."""

    step_s: float  # median
    reset_s: float
    computing_share: float  # of a step's time, or of a reset's where only that is slow
    pauses: float  # how often a step, or such a reset, gave its core away by itself

    @property
    def is_slow(self) -> bool:
        """Whether a process of its own is worth its while."""
        return self.step_s >= _SLOW_STEP_S or self.reset_s >= _SLOW_RESET_S

    @property
    def waits(self) -> bool:
        """Whether others can be stepped meanwhile without a core of their own.

        On a busy machine a step that computes takes much longer than it computes, too, but never pauses.
        """
        return self.computing_share < _WAITING_SHARE and self.pauses >= _FEWEST_PAUSES


@dataclass(frozen=True)
class Choice:
    """How episodes are played."""

    count: int  # copies
    in_processes: bool


def choose(cost: StepCost, episodes: int, environments: int | None, cores: int) -> Choice:
    """Choose; `environments` is how many were asked for, None: as many as are useful."""
    most = environments
    if most is None:
        most = USUALLY_MOST if cost.waits or not cost.is_slow else min(USUALLY_MOST, cores)
    count = min(episodes, most)
    worthwhile = cost.is_slow and count > 1 and (cost.waits or cores > 1)
    return Choice(count, in_processes=worthwhile)


class EvaluationCopies:
    """Built when they are first needed; closed and built anew after a failure."""

    def __init__(self, description: RunDescription, calls: CallClock | None = None) -> None:
        self._description = description
        self._calls = calls or CallClock()
        self._environments: Environments | None = None
        self._choice: Choice | None = None  # None: not measured yet
        self._is_native = False
        self._waits = False

    @property
    def are_native(self) -> bool:
        """Whether they are stepped as one, so that an episode cannot be given a seed of its own."""
        return self._is_native

    def get(self, policy: ActingPolicy, episodes: int, stop: StopRequest) -> Environments:
        """The copies for `episodes`; `policy` acts while a step is measured.

        Raises:
            EnvironmentBrokenError: they cannot be built, or raise.
            StoppedError: a stop was requested meanwhile.
        """
        if self._choice is None:
            self._choice = self._look(policy, episodes, stop)
        count = min(self._choice.count, episodes)
        if self._environments is not None and self._environments.count != count:
            self.close()
        if self._environments is None:
            self._environments = self._build(count, in_processes=self._choice.in_processes)
        return self._environments

    @property
    def wait(self) -> bool:
        """Whether their steps wait for something, so that cores are free meanwhile."""
        return self._waits

    def cpu_s(self) -> float:
        """Computing time so far, of this process and of those that copies run in."""
        return time.process_time() + sum(_cpu_s_of(one.pid) for one in list(self._calls.processes))

    def close(self) -> None:
        """Free them; they are built anew when they are needed."""
        if self._environments is not None:
            self._environments.close()
            self._environments = None

    def _look(self, policy: ActingPolicy, episodes: int, stop: StopRequest) -> Choice:
        """Measure one copy, unless there is a native vector version."""
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
        """`auto` and `one` play on for ever; the others what is assigned to them."""
        source, masked = self._description.evaluated, self._description.spec.observation.masked
        vector: VectorEnv[Any, Any, Any]
        self._calls.start()  # building may hang, too
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
        except ConfigurationError as error:  # it could be made when it was looked at: this may pass
            raise EnvironmentBrokenError(str(error)) from error
        finally:
            self._calls.stop()
        return Environments(vector, [0] * count, self._calls)


def measure(environments: Environments, policy: ActingPolicy, stop: StopRequest) -> StepCost:
    """Reset environments and step them for a moment.

    Raises:
        EnvironmentBrokenError: they raised.
        StoppedError: a stop was requested meanwhile.
    """
    before = _spent()
    state = PolicyState(policy.spec, environments.reset())
    reset = _spent() - before
    steps: list[Array] = []
    while len(steps) < _MEASURED_STEPS and sum(step[0] for step in steps) < _MEASURED_S:
        if stop.requested:
            raise StoppedError("stopped before an evaluation")
        actions = policy.action.to_environment(policy.actions(state.outputs(policy), None))
        before = _spent()
        step = environments.step(actions)
        steps.append(_spent() - before)
        state.observe(step.observations, step.begins)
    step_s = float(np.median([step[0] for step in steps]))
    looked_at = np.array(steps[1:] or steps if step_s >= _SLOW_STEP_S else [reset])  # a first step prepares
    wall_s, cpu_s, pauses = looked_at.mean(axis=0)
    return StepCost(step_s, float(reset[0]), float(cpu_s / wall_s), float(pauses))


def _spent() -> Array:
    """Time, computing time of this process, and how often this thread has given its core away."""
    usage = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
    return np.array([time.perf_counter(), time.process_time(), usage.ru_nvcsw])


def _cpu_s_of(pid: int | None) -> float:
    """Computing time of another process; 0 where the system does not tell."""
    try:
        return 0.0 if pid is None else time.clock_gettime(~pid << 3 | 2)  # Linux: clock_getcpuclockid(3)
    except OSError:
        return 0.0
