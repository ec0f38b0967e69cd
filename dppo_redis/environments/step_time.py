"""Measures the time of an environment's step, and chooses whether environments step in processes.

Processes save time if a step waits (a simulator elsewhere, a device, a pause), or computes while cores are
free. Each costs some tenths of a second at its start and about a quarter of a millisecond per step.
"""

import copy
import os
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import gymnasium

from dppo_redis.environments.inspect import sample_action
from dppo_redis.service.process_state import keeping_process_state

MOST_STEPS = 10
LONGEST_S = 0.1
_SLOW_S = 0.001  # a faster step costs less than a message to another process
_GAIN = 0.7  # processes are taken where they need at most this share of the time
_TALK_S = 0.00025  # of each environment's process, per step

Stepping = Literal["sync", "async"]


@dataclass(frozen=True)
class StepTime:
    """One step of one environment, by the median of some."""

    wall_s: float
    cpu_s: float  # of this process; a simulator in a process of its own is waited for


@dataclass(frozen=True)
class Choice:
    """How environments are stepped, and why in words for the log."""

    stepping: Stepping
    reason: str


def measure(env: gymnasium.Env[Any, Any]) -> StepTime | None:
    """Reset an environment and step it a few times; None where it raises: that shows where it is used.

    The caller resets the environment before using it, or better builds another one.
    """
    walls: list[float] = []
    cpus: list[float] = []
    with keeping_process_state():
        try:
            space = copy.deepcopy(env.action_space)  # drawing from the environment's own would move it on
            space.seed(0)
            _, info = env.reset(seed=0)
            began = time.perf_counter()
            while len(walls) < MOST_STEPS and time.perf_counter() - began < LONGEST_S:
                action = sample_action(space, info)
                wall, cpu = time.perf_counter(), time.process_time()
                _, _, terminated, truncated, info = env.step(action)
                cpus.append(time.process_time() - cpu)
                walls.append(time.perf_counter() - wall)
                if terminated or truncated:
                    _, info = env.reset()
        except (Exception, SystemExit):  # noqa: BLE001 the user's code may raise anything
            return None
    return StepTime(median(walls), median(cpus))


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def free_cores() -> int:
    """Cores that this process may use, without one for the learner."""
    return max(1, cores() - 1)


def choose(step: StepTime, count: int, cores: int) -> Choice:
    """How `count` environments are stepped together on so many free cores."""
    one_by_one_s = count * step.wall_s
    computing_s = min(step.cpu_s, step.wall_s)
    together_s = (step.wall_s - computing_s) + computing_s * count / min(cores, count) + _TALK_S * count
    measured = f"a step takes {1000 * step.wall_s:.3g} ms, {1000 * computing_s:.3g} ms of it computing"
    if step.wall_s < _SLOW_S:
        return Choice("sync", f"{measured}: too short for processes to be worth while")
    if together_s > _GAIN * one_by_one_s:
        return Choice("sync", f"{measured}, and this machine has too few free cores for processes to help")
    return Choice(
        "async", f"{measured}: {1000 * together_s:.3g} ms for all instead of {1000 * one_by_one_s:.3g} ms"
    )
