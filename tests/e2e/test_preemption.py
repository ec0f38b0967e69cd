"""One command line for each start: `--resume auto` after kills at any time, until the run has finished."""

import contextlib
import csv
import signal
import time
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until
from tests.e2e.support import SLOW, Command, Server, assert_books_balance, assert_nothing_left

_BUDGET = 1600  # trained steps; some seconds of training
_LINE = (*SLOW, "--total-steps", str(_BUDGET), "--resume", "auto", "--json")


def _updates(run_dir: Path) -> list[int]:
    with (run_dir / "metrics.csv").open() as file:
        return [int(row["update"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("program", "moments", "name"),
    [("serial", (0.3, 3.1, 2.4, 4.0), "Slow-v0-s1-serial"), ("train", (1.7, 4.0, 3.2), "Slow-v0-s1")],
)
def test_a_run_that_is_killed_repeatedly_completes_with_the_same_command_line(
    tmp_path: Path, program: str, moments: tuple[float, ...], name: str
) -> None:
    with contextlib.ExitStack() as stack:
        for moment in moments:
            killed = stack.enter_context(Command(program, *_LINE, cwd=tmp_path))
            time.sleep(moment)
            killed.send(
                signal.SIGKILL
            )  # only the command: its fleet is still ending when the next command starts
            killed.process.wait()
        command = stack.enter_context(Command(program, *_LINE, cwd=tmp_path))
        assert command.wait(60) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert_nothing_left(command)
    run_dir = tmp_path / "runs" / f"tests.envs-{name}"
    assert summary["run_dir"] == str(run_dir)
    assert (summary["reason"], summary["trained_steps"] >= _BUDGET) == ("total_steps", True)
    assert _updates(run_dir) == list(range(1, summary["updates"] + 1))
    with Command(program, *_LINE, cwd=tmp_path) as command:
        assert command.wait(30) == ExitStatus.DONE
        assert command.summary() == summary


@pytest.mark.slow
def test_on_an_outside_redis_a_killed_start_is_continued_and_other_runs_are_not_touched(
    tmp_path: Path,
) -> None:
    with Server() as server, contextlib.ExitStack() as stack:
        server.start()
        run = server.run("one")
        line = ("train", *_LINE, "--run", "one", "--redis", server.url)
        for key in (run.keys.control, run.keys.spec):  # before the first checkpoint, and at about its time
            killed = stack.enter_context(Command(*line, cwd=tmp_path))
            wait_until(lambda key=key: server.client.exists(key) == 1, 30, f"there is {key}")  # type: ignore[misc]
            killed.send(signal.SIGKILL)
            killed.process.wait()
        command = stack.enter_context(Command(*line, cwd=tmp_path))
        assert command.wait(60) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert summary["trained_steps"] >= _BUDGET
        assert_books_balance(summary["ledger"])
        before = run.all_keys()
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        other = stack.enter_context(Command(*line, cwd=elsewhere))
        assert other.wait(30) == ExitStatus.CONFIGURATION
        assert "already has a run one" in other.err
        assert run.all_keys() == before
        assert list(elsewhere.iterdir()) == []
