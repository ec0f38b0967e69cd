"""When a run is done: the target or the step budget. Pure."""

from dataclasses import dataclass
from typing import Literal

from learner.progress import Progress

Reason = Literal["target", "total_steps"]


@dataclass(frozen=True)
class Goal:
    """What a run is for."""

    total_steps: int  # budget of trained steps
    target_return: float | None
    target_on: Literal["eval", "train"]


@dataclass(frozen=True)
class Finished:
    """Why a run is done."""

    reason: Reason
    target_step: int | None  # settled_steps at which the target was met


def judge_goal(
    goal: Goal,
    progress: Progress,
    settled_steps: int,
    evaluation_return: float | None,
    evaluation_steps: int | None,
) -> Finished | None:
    """Say whether the run is done after an update.

    An evaluation of untrained weights meets no target, even if its return is high enough.

    Args:
        settled_steps: valid steps of all settled rollouts, the last one trained on included.
        evaluation_return: newest greedy evaluation, and the settled_steps of the weights it played.
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
