"""Measures the cost of an environment's step, and chooses whether an actor's environments step in processes.

Evaluations measure their copies with the same functions (`workers/evaluation_copies.py`). Processes save time
if a step waits (a simulator elsewhere, a device, a pause), or computes while cores are free. A process costs
some tenths of a second at its start and about a quarter of a millisecond per step.
"""

import copy
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, TypeVar

import gymnasium

from dppo_redis.environments.inspect import sample_action
from dppo_redis.service.process_state import keeping_process_state

MOST_STEPS = 10
LONGEST_S = 0.1
SLOW_STEP_S = 0.001  # a faster step costs less than a message to another process
_MOST_TIME_SHARE = 0.7  # processes are chosen if they need at most this share of the time
_MESSAGE_S = 0.00025  # time of the messages with one environment's process, per step

R = TypeVar("R")
Stepping = Literal["sync", "async"]


@dataclass(frozen=True)
class CallCost:
    """The cost of one call of an environment."""

    wall_s: float
    cpu_s: float  # of this process; a simulator in another process is not counted
    pauses: int  # voluntary context switches of this thread


def measure_call(call: Callable[[], R]) -> tuple[R, CallCost]:
    """Make a call; returns its result and its cost."""
    before, wall, cpu = _pauses(), time.perf_counter(), time.process_time()
    result = call()
    return result, CallCost(time.perf_counter() - wall, time.process_time() - cpu, _pauses() - before)


def _pauses() -> int:
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def measure_steps(step: Callable[[], CallCost], most_steps: int, longest_s: float) -> list[CallCost]:
    """The costs of `most_steps` steps, of fewer if they take `longest_s` seconds, but of one at least."""
    began = time.perf_counter()
    costs = [step()]
    while len(costs) < most_steps and time.perf_counter() - began < longest_s:
        costs.append(step())
    return costs


@dataclass(frozen=True)
class StepTime:
    """The time of one step of one environment: the median of some steps."""

    wall_s: float
    cpu_s: float  # of this process; a simulator in another process is not counted


@dataclass(frozen=True)
class Choice:
    """The way in which environments are stepped, and the reason as text for the log."""

    stepping: Stepping
    reason: str


def measure(env: gymnasium.Env[Any, Any]) -> StepTime | None:
    """Reset an environment and measure a few steps with random actions.

    Returns None if the environment raises: the error is reported when the environment is used. The caller
    resets the environment before using it, or better builds another one.
    """
    info: dict[str, Any] = {}

    def step() -> CallCost:
        nonlocal info
        action = sample_action(space, info)
        (_, _, terminated, truncated, info), cost = measure_call(lambda: env.step(action))
        if terminated or truncated:
            _, info = env.reset()
        return cost

    with keeping_process_state():
        try:
            space = copy.deepcopy(env.action_space)  # draws from the environment's own space would change it
            space.seed(0)
            _, info = env.reset(seed=0)
            costs = measure_steps(step, MOST_STEPS, LONGEST_S)
        except (Exception, SystemExit):  # noqa: BLE001 the user's code may raise anything
            return None
    return StepTime(median(cost.wall_s for cost in costs), median(cost.cpu_s for cost in costs))


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def free_cores() -> int:
    """Cores that this process may use, without one for the learner."""
    return max(1, cores() - 1)


def choose(step: StepTime, count: int, cores: int) -> Choice:
    """Choose how an actor steps `count` environments on `cores` free cores."""
    one_by_one_s = count * step.wall_s
    computing_s = min(step.cpu_s, step.wall_s)
    together_s = (step.wall_s - computing_s) + computing_s * count / min(cores, count) + _MESSAGE_S * count
    measured = f"a step takes {1000 * step.wall_s:.3g} ms, {1000 * computing_s:.3g} ms of it computing"
    if step.wall_s < SLOW_STEP_S:
        return Choice("sync", f"{measured}: too short for processes to be worth while")
    if together_s > _MOST_TIME_SHARE * one_by_one_s:
        return Choice("sync", f"{measured}, and this machine has too few free cores for processes to help")
    return Choice(
        "async", f"{measured}: {1000 * together_s:.3g} ms for all instead of {1000 * one_by_one_s:.3g} ms"
    )
