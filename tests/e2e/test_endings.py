"""The end of a run on a shared Redis: exit statuses, remaining keys, and resuming."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until
from tests.e2e.support import SLOW, Command, Run, Server, assert_books_balance, assert_nothing_left, tree

NAME = "ending"
BUDGET = 800  # trained steps; two seconds of training
_WEEK_S = 7 * 24 * 3600
_FLEET = (*SLOW, "--actors", "1")  # beside the actor from outside


@dataclass(frozen=True)
class Ended:
    """A run that has ended because its budget was spent."""

    run: Run
    url: str
    place: Path
    summary: dict[str, Any]
    outside_status: int

    @property
    def directory(self) -> Path:
        return self.place / "runs" / NAME


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server.start()


@pytest.fixture(scope="module")
def ended(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run with an outside actor, which was started before the run."""
    place, run = tmp_path_factory.mktemp("endings"), server.run(NAME)
    join = ["actor", "--redis", server.url, "--run", NAME]
    train = ["train", *_FLEET, "--run", NAME, "--redis", server.url, "--total-steps", str(BUDGET), "--json"]
    with Command(*train, cwd=place) as command, Command(*join, cwd=place) as outside:
        wait_until(lambda: int(run.client.hget(run.keys.boots, "next") or 0) > 0, 30, "the actor joins")
        status, outside_status = command.wait(45), outside.wait(10)
        assert status == ExitStatus.DONE, command.err
        assert_nothing_left(command)
        assert_nothing_left(outside)
        return Ended(run, server.url, place, command.summary(), outside_status)


def _refused(ended: Ended, *arguments: str) -> str:
    """The line with which `train` refuses this command line."""
    with Command("train", *SLOW, "--redis", ended.url, *arguments, cwd=ended.place) as command:
        assert command.wait(15) == ExitStatus.CONFIGURATION, command.err
        assert len(command.error_lines) == 1
        assert command.error_lines[0].startswith("dppo-redis: ")
        assert_nothing_left(command)
        return command.error_lines[0]


def test_outside_actors_exit_with_status_0_at_the_end_of_a_run(ended: Ended) -> None:
    assert ended.outside_status == ExitStatus.DONE
    assert ended.summary["reason"] == "total_steps"
    assert ended.summary["trained_steps"] >= BUDGET
    assert_books_balance(ended.summary["ledger"])


def test_at_the_end_the_stream_is_deleted_and_the_other_keys_live_for_seven_days(ended: Ended) -> None:
    run = ended.run
    assert run.hash(run.keys.control)["state"] == "stop"
    assert run.hash(run.keys.control)["reason"] == "total_steps"
    assert run.client.exists(run.keys.rollouts) == 0
    assert {run.keys.weights, run.keys.spec, run.keys.ledger, run.keys.status} <= run.all_keys()
    lives = {key: run.client.ttl(key) for key in run.all_keys()}
    assert {key: s for key, s in lives.items() if not _WEEK_S - 600 < s <= _WEEK_S} == {}


def test_a_run_name_whose_keys_exist_is_refused_without_resume_or_overwrite(ended: Ended) -> None:
    before, kept = ended.run.all_keys(), tree(ended.directory)
    line = _refused(ended, "--run", NAME, "--run-dir", "elsewhere")
    assert NAME in line
    assert "--resume" in line
    assert "--overwrite" in line
    assert not (ended.place / "elsewhere").exists()
    assert ended.run.all_keys() == before
    assert tree(ended.directory) == kept


def test_a_directory_that_holds_another_run_is_refused_and_not_touched(ended: Ended) -> None:
    kept = tree(ended.directory)
    assert NAME in _refused(ended, "--run", "newcomer", "--run-dir", f"runs/{NAME}")
    assert tree(ended.directory) == kept


def test_overwrite_removes_no_keys_where_the_directory_is_refused(ended: Ended, server: Server) -> None:
    precious = server.run("precious")
    precious.client.hset(precious.keys.weights, "version", 7)
    foreign = ended.place / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    line = _refused(ended, "--run", "precious", "--run-dir", "foreign", "--overwrite")
    assert "foreign" in line
    assert tree(foreign) == {"thesis.txt": b"years of work"}
    assert precious.weights("version") == 7


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        (["--network.hidden", "32"], "hidden"),
        (["--rollout-steps", "7"], "rollout_steps"),
        (["--ppo.normalise-observations"], "normalise_observations"),
        (["--config", "other.toml"], "--config"),
        (["--overwrite"], "--overwrite"),
    ],
)
def test_a_refused_resume_changes_nothing(ended: Ended, more: list[str], cause: str) -> None:
    before = (ended.directory / "config.toml").read_bytes()
    assert cause in _refused_words(ended, "train", "--resume", "--run_dir", str(ended.directory), *more)
    assert (ended.directory / "config.toml").read_bytes() == before


def _refused_words(ended: Ended, *arguments: str) -> str:
    with Command(*arguments, "--redis", ended.url, cwd=ended.place) as command:
        assert command.wait(15) == ExitStatus.CONFIGURATION
        assert_nothing_left(command)
        return command.error_lines[-1]


def test_resume_continues_from_the_checkpoint_with_higher_versions(ended: Ended) -> None:
    run = ended.run
    update, version, epoch = (run.weights(field) for field in ("update", "version", "epoch"))
    trained = run.status("trained_steps")
    more = ["--resume", "--run", NAME, "--total-steps", str(trained + BUDGET)]
    with Command("train", *more, "--redis", ended.url, "--json", cwd=ended.place) as command:
        assert command.wait(45) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert_nothing_left(command)
    assert summary["reason"] == "total_steps"
    assert summary["updates"] > update
    assert summary["version"] > version
    assert run.weights("epoch") > epoch
    assert summary["trained_steps"] >= trained + BUDGET
    assert summary["settled_steps"] >= trained + BUDGET
    assert_books_balance(summary["ledger"])
    assert run.hash(run.keys.control)["state"] == "stop"
    log = (ended.directory / "logs" / "learner.log").read_text()
    assert f"resuming at update {update}" in log


def test_overwrite_starts_a_new_run_of_the_same_name(ended: Ended) -> None:
    (ended.directory / "notes.txt").write_text("the user's own")
    newest = max((ended.directory / "checkpoints").glob("*.pt")).name
    again = [
        "train",
        *_FLEET,
        *("--evaluation.enabled", "false"),
        "--overwrite",
        "--run",
        NAME,
        "--total-steps",
        "64",
        "--redis",
        ended.url,
        "--json",
    ]
    with Command(*again, cwd=ended.place) as command:
        assert command.wait(45) == ExitStatus.DONE, command.err
        summary = command.summary()
    assert 64 <= summary["trained_steps"] < BUDGET
    assert summary["ledger"]["trained"] < BUDGET // 16
    assert_books_balance(summary["ledger"])
    assert not (ended.directory / "checkpoints" / newest).exists()
    assert (ended.directory / "notes.txt").read_text() == "the user's own"
