"""The goal that ends a run."""

from typing import Literal

from learner.goal import Finished, Goal, judge_goal
from learner.progress import Progress


def make_goal(
    total_steps: int = 1000, target: float | None = 475.0, on: Literal["eval", "train"] = "eval"
) -> Goal:
    return Goal(total_steps, target, on)


def make_progress(trained_steps: int = 100, returns: int = 100, of: float = 0.0) -> Progress:
    progress = Progress(trained_steps=trained_steps)
    progress.returns.extend([of] * returns)
    return progress


def judge(
    goal: Goal, progress: Progress, evaluation: float | None = None, settled_steps: int = 120
) -> Finished | None:
    return judge_goal(goal, progress, settled_steps, evaluation, None if evaluation is None else 90)


def test_a_run_below_target_and_budget_continues() -> None:
    assert judge(make_goal(), make_progress(), evaluation=474.9) is None


def test_an_evaluation_that_reaches_the_target_exactly_ends_the_run() -> None:
    assert judge(make_goal(), make_progress(), evaluation=475.0) == Finished("target", 90)


def test_the_step_at_which_an_evaluation_met_the_target_is_that_of_the_weights_it_played() -> None:
    finished = judge(make_goal(), make_progress(), evaluation=480.0, settled_steps=120)
    assert finished is not None
    assert finished.target_step == 90


def test_training_episodes_do_not_meet_a_target_on_evaluation() -> None:
    assert judge(make_goal(on="eval"), make_progress(of=500.0)) is None


def test_an_evaluation_does_not_meet_a_target_on_training_episodes() -> None:
    assert judge(make_goal(on="train"), make_progress(), evaluation=500.0) is None


def test_a_hundred_training_episodes_that_reach_the_target_end_the_run() -> None:
    assert judge(make_goal(on="train"), make_progress(of=475.0)) == Finished("target", 120)


def test_ninety_nine_training_episodes_are_not_enough() -> None:
    assert judge(make_goal(on="train"), make_progress(returns=99, of=500.0)) is None


def test_a_negative_target_can_be_met() -> None:
    assert judge(make_goal(target=-200.0), make_progress(), evaluation=-150.0) == Finished("target", 90)


def test_a_target_of_zero_is_a_target() -> None:
    assert judge(make_goal(target=0.0), make_progress(), evaluation=0.0) == Finished("target", 90)


def test_the_last_step_of_the_budget_ends_the_run() -> None:
    assert judge(make_goal(), make_progress(trained_steps=999)) is None
    assert judge(make_goal(), make_progress(trained_steps=1000)) == Finished("total_steps", None)


def test_the_budget_is_of_trained_steps_not_of_dropped_ones() -> None:
    assert judge(make_goal(), make_progress(trained_steps=999), settled_steps=5000) is None


def test_a_run_without_a_target_continues_until_its_budget_is_spent() -> None:
    goal = make_goal(target=None)
    assert judge(goal, make_progress(of=500.0), evaluation=500.0) is None
    assert judge(goal, make_progress(trained_steps=1000), evaluation=500.0) == Finished("total_steps", None)


def test_a_target_met_with_the_last_step_counts_as_met() -> None:
    progress = make_progress(trained_steps=1000)
    assert judge(make_goal(), progress, evaluation=475.0) == Finished("target", 90)
