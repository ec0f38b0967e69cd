"""Lock-step mode through the command line: the same bits twice, after a resume, and in one process."""

import csv
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, Server, assert_books_balance

_BATCH = 3 * 8 * 21  # rollouts of three actors for one update
_RUN = (
    *("CartPole-v1", "--lock-step", "--segment-updates", "4", "--actors", "3", "--vectorization", "sync"),
    *("--ppo.batch-steps", str(_BATCH), "--checkpoint.milestone-steps", str(6 * _BATCH), "--json"),
)
_UNSEEN = ("--evaluation.enabled", "false")
_TIMES = {"train_s", "wait_s", "update_s", "evaluation_return", "evaluation_steps"}


def _updates(number: int) -> tuple[str, str]:
    return "--total-steps", str(number * _BATCH)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """20 updates without a break; 10 updates (inside a segment), a resume, and 10 more; 20 in one process.

    The interrupted run is not evaluated: evaluation must change nothing.
    """
    place = tmp_path_factory.mktemp("lock_step")
    with (
        Command("train", *_RUN, *_updates(20), "--run-dir", "whole", cwd=place) as whole,
        Command("train", *_RUN, *_UNSEEN, *_updates(10), "--run-dir", "halves", cwd=place) as half,
        Command("serial", *_RUN, *_updates(20), "--run-dir", "serial", cwd=place) as serial,
    ):
        for command in (whole, half, serial):
            assert command.wait(180) == ExitStatus.DONE, command.err
        assert_books_balance(whole.summary()["ledger"])
    resume = ("train", "--resume", "--run-dir", "halves", "--json", *_updates(20))
    with Command(*resume, cwd=place) as rest:
        assert rest.wait(180) == ExitStatus.DONE, rest.err
    return {name: place / name for name in ("whole", "halves", "serial")}


def _learnt(directory: Path, name: str = "checkpoint-000000020.pt") -> dict[str, Any]:
    values = cast(dict[str, Any], torch.load(directory / "checkpoints" / name, weights_only=True))
    moments = {
        f"{i}.{name}": x for i, state in values["optimizer"]["state"].items() for name, x in state.items()
    }
    return {**values["model"], **moments, "order": values["minibatch_rng"]}


def _assert_bit_equal(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


def _rows(directory: Path, *but: str) -> list[dict[str, str]]:
    with (directory / "metrics.csv").open(newline="") as stream:
        return [
            {name: value for name, value in row.items() if name not in {*_TIMES, *but}}
            for row in csv.DictReader(stream)
        ]


def test_two_runs_of_three_actors_one_of_them_resumed_learn_the_same_bit_for_bit(
    runs: dict[str, Path],
) -> None:
    _assert_bit_equal(_learnt(runs["whole"]), _learnt(runs["halves"]))


def test_the_serial_baseline_with_the_same_three_collectors_learns_the_same(runs: dict[str, Path]) -> None:
    _assert_bit_equal(_learnt(runs["whole"]), _learnt(runs["serial"]))


def test_the_metrics_of_the_resumed_run_are_those_of_the_run_without_a_break(runs: dict[str, Path]) -> None:
    assert len(_rows(runs["whole"])) == 20
    assert _rows(runs["halves"], "version") == _rows(runs["whole"], "version")
    assert _rows(runs["serial"], "version") == _rows(runs["whole"], "version")


def test_milestones_stay_and_are_the_same_in_both(runs: dict[str, Path]) -> None:
    for directory in (runs["whole"], runs["halves"]):
        kept = sorted(file.name for file in (directory / "checkpoints").glob("milestone-*.pt"))
        assert kept == [f"milestone-{n * 6 * _BATCH:012d}.pt" for n in (1, 2, 3)]
        starts = sorted(file.name for file in (directory / "checkpoints").glob("checkpoint-*.pt"))
        assert starts == [f"checkpoint-{update:09d}.pt" for update in (12, 16, 20)]
    name = f"milestone-{2 * 6 * _BATCH:012d}.pt"
    _assert_bit_equal(_learnt(runs["whole"], name), _learnt(runs["halves"], name))


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        (["--actors", "2"], "keeps its lock-step mode"),
        (["--init-from", "halves"], "init_from"),
        (["--ppo.initial-std", "0.5"], "initial_std"),
    ],
)
def test_a_resume_with_another_fleet_or_beginning_is_refused(
    runs: dict[str, Path], more: list[str], cause: str
) -> None:
    arguments = ("train", "--resume", "--run-dir", str(runs["whole"]), *more)
    with Command(*arguments, cwd=runs["whole"].parent) as command:
        assert command.wait(30) == ExitStatus.CONFIGURATION
        (line,) = command.error_lines
        assert cause in line


def test_an_outside_actor_is_refused_in_one_line_and_training_continues(tmp_path: Path) -> None:
    endless = (*_RUN, *_UNSEEN, "--total-steps", "1000000000", "--run", "fixed")
    with Server().start() as server, Command("train", *endless, "--redis", server.url, cwd=tmp_path) as train:
        run = server.run("fixed")
        run.reaches(1)
        with Command("actor", "--redis", server.url, "--run", "fixed", cwd=tmp_path) as stranger:
            assert stranger.wait(30) == ExitStatus.CONFIGURATION
            (line,) = stranger.error_lines
            assert "takes no more than the 3 actors" in line
        run.goes_on()
        assert train.stop() == ExitStatus.TERMINATED
