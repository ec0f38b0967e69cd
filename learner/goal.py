"""Decides when a run is done: it has met the target or spent the step budget. Pure."""

from dataclasses import dataclass
from typing import Literal

from learner.progress import Progress

Reason = Literal["target", "total_steps"]


@dataclass(frozen=True)
class Goal:
    """The step budget and the target of a run."""

    total_steps: int  # budget of trained steps
    target_return: float | None
    target_on: Literal["eval", "train"]


@dataclass(frozen=True)
class Finished:
    """The reason why a run is done."""

    reason: Reason
    target_step: int | None  # settled_steps at which the target was met


def judge_goal(
    goal: Goal,
    progress: Progress,
    settled_steps: int,
    evaluation_return: float | None,
    evaluation_steps: int | None,
) -> Finished | None:
    """Decide whether the run is done after an update; returns None if it is not.

    An evaluation of untrained weights meets no target, even if its return is high enough.

    Args:
        settled_steps: valid steps of all settled rollouts, including the last trained one.
        evaluation_return: mean return of the newest greedy evaluation.
        evaluation_steps: settled_steps of the weights that this evaluation played.
    """
    if goal.target_return is not None:
        if goal.target_on == "eval":
            value, step = (evaluation_return if evaluation_steps else None), evaluation_steps
        else:
            value, step = progress.full_return_mean, settled_steps
        if value is not None and value >= goal.target_return:
            return Finished("target", step)
    if progress.trained_steps >= goal.total_steps:
        return Finished("total_steps", None)
    return None
