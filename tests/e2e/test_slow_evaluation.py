"""Evaluations of environments whose steps take milliseconds, and of endless tasks."""

from pathlib import Path

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, assert_nothing_left

_FLEET = (
    *("--actors", "2", "--envs-per-actor", "4", "--network.hidden", "8", "--vectorization", "async"),
    *("--ppo.batch-steps", "256", "--ppo.update-epochs", "1", "--json"),
)


def test_a_target_ends_a_run_of_slow_steps_soon_after_it_is_met(tmp_path: Path) -> None:
    """20 episodes of 100 steps of 5 ms take ten seconds one after another. Each policy meets the target."""
    arguments = ("tests.envs:Slow-v0", "--env-kwargs", "ms", "5", "length", "100", *_FLEET)
    more = ("--total-steps", "1000000", "--target-return", "1")
    with Command("train", *arguments, *more, cwd=tmp_path) as command:
        assert command.wait(90) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert_nothing_left(command)
    assert (summary["reason"], summary["warnings"]) == ("target", [])
    assert summary["evaluations"] >= 1
    evaluation = summary["evaluation"]
    assert (evaluation["complete"], evaluation["episodes"], evaluation["planned"]) == (True, 20, 20)
    assert summary["target_step"] == evaluation["settled_steps"] > 0
    assert summary["return_mean"] == 100 * 101 / 2


def test_an_endless_task_does_not_delay_the_end_and_the_message_names_a_remedy(tmp_path: Path) -> None:
    arguments = ("tests.envs:Slow-v0", "--env-kwargs", "ms", "5", "length", "1000000000", *_FLEET)
    more = ("--total-steps", "512", "--evaluation.end-wait-s", "3")
    with Command("train", *arguments, *more, cwd=tmp_path) as command:
        command.wait_for_output("waiting for the last evaluation", 60)
        assert "at most 3 s" in command.err
        assert command.wait(30) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert_nothing_left(command)
    assert (summary["reason"], summary["evaluation"], summary["evaluations"]) == ("total_steps", None, 0)
    assert any("TimeLimit" in text or "not evaluated in time" in text for text in summary["warnings"])
    with Command("evaluate", summary["run_dir"], "--episodes", "1", cwd=tmp_path) as command:
        command.wait_for_output("using its last checkpoint", 30)
