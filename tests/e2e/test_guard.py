"""Commands end correctly although their environments block, crash, or leave processes behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until
from tests.e2e.support import Command, assert_nothing_left
from tests.patience import PATIENCE

_SMALL = (
    *("--envs-per-actor", "1", "--rollout-steps", "64", "--ppo.batch-steps", "64", "--network.hidden", "8"),
    *("--evaluation.episodes", "1"),
)


def serial(how: str, after: int, *options: str, cwd: Path) -> Command:
    wild = ("tests.envs:Wild-v0", "--env-kwargs", "how", how, "after", str(after))
    return Command("serial", *wild, *_SMALL, "--vectorization", "sync", *options, cwd=cwd)


def test_a_stop_works_while_the_environment_holds_the_interpreter(tmp_path: Path) -> None:
    with serial("holds_the_lock", 200, cwd=tmp_path) as command:
        command.wait_for_output("update 1", 30)
        time.sleep(1.0)  # usually it holds the interpreter's lock by then
        began = time.monotonic()
        assert command.stop() == ExitStatus.TERMINATED
        assert time.monotonic() - began < 5 * PATIENCE
        assert_nothing_left(command, 1)


def test_the_limit_of_a_call_holds_while_the_environment_holds_the_interpreter(tmp_path: Path) -> None:
    with serial("holds_the_lock", 200, "--env-timeout-s", "1", cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.ENVIRONMENT_BROKEN
        assert "has not answered" in command.err
        assert "in holds_the_lock" in command.err  # the place in the code
        assert_nothing_left(command, 1)


def test_a_crash_inside_the_environment_is_named(tmp_path: Path) -> None:
    with serial("crashes", 200, cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.ENVIRONMENT_BROKEN
        assert "SIGSEGV inside the environment" in command.err


def test_an_environment_that_exits_with_status_0_is_named(tmp_path: Path) -> None:
    with serial("leaves", 200, cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.ENVIRONMENT_BROKEN
        assert "the environment ended this command, with exit status 0" in command.err


def test_a_process_that_the_environment_forked_does_not_train(tmp_path: Path) -> None:
    with serial("forks", 200, "--total-steps", "640", "--run-dir", "run", cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.DONE, command.err
        assert "forked, and its child came back: that child ends here" in command.err
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(update) for update in range(1, 11)]


@pytest.mark.parametrize("how", ["leaves_a_thread", "leaves_processes"])
def test_processes_that_an_environment_leaves_behind_end_with_the_command(how: str, tmp_path: Path) -> None:
    with serial(how, 0, "--total-steps", "128", cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.DONE
        assert_nothing_left(command)


def test_a_command_does_not_outlive_its_guard(tmp_path: Path) -> None:
    with serial("leaves_a_thread", 0, cwd=tmp_path) as command:
        command.wait_for_output("update 1", 30)
        command.send(signal.SIGKILL)
        command.wait(5)
        assert_nothing_left(command, 5)


def test_a_command_that_is_killed_is_reported_as_killed(tmp_path: Path) -> None:
    """The guard, whose status the shell sees, ends with the same signal as the command."""
    with serial("leaves_a_thread", 0, cwd=tmp_path) as command:
        command.wait_for_output("update 1", 30)
        own = command.service("serial", "tests.envs:Wild-v0")
        wait_until(lambda: own != command.process.pid, 1, "the command runs in a process of its own")
        os.kill(own, signal.SIGKILL)
        assert command.wait(10) == -signal.SIGKILL
