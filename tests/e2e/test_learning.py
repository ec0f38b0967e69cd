"""A fleet and the serial baseline learn CartPole and leave the documented files."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.reports import UpdateRecord
from tests.e2e.support import Command, assert_books_balance

TARGET = 475.0
BUDGET = 6000
_PNG = b"\x89PNG\r\n\x1a\n"
_SERIAL_FIELDS: dict[str, tuple[type, ...]] = {
    "reason": (str,),
    "settled_steps": (int,),
    "trained_steps": (int,),
    "wall_s": (float,),
    "train_s": (float,),
    "steps_per_s": (float,),
    "updates": (int,),
    "return_mean": (float,),
    "return_episodes": (int,),
    "target_step": (int, type(None)),
    "train_return_mean": (float,),
    "run_dir": (str,),
}
_FIELDS: dict[str, tuple[type, ...]] = _SERIAL_FIELDS | {
    "version": (int,),
    "staleness": (dict,),
    "ledger": (dict,),
    "actors": (int,),
}
_LEDGER = {"entries_added", "trained", "stale", "duplicate", "refused", "lost", "backlog", "imbalance"}


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str
    summary: dict[str, Any]
    left: list[str]

    @property
    def directory(self) -> Path:
        return Path(self.summary["run_dir"])


def _end(command: Command) -> Ended:
    status = command.wait(90)
    return Ended(status, command.out, command.err, command.summary(), command.survivors())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("learning")


@pytest.fixture(scope="module")
def both(place: Path) -> Iterator[tuple[Ended, Ended]]:
    """Two commands at the same time in one working directory, one with a target and one without."""
    common = ["train", "CartPole-v1", "--actors", "2", "--json"]
    with (
        Command(*common, "--target-return", str(TARGET), "--total-steps", "150000", cwd=place) as solving,
        Command(*common, "--total-steps", str(BUDGET), cwd=place) as budgeted,
    ):
        yield _end(solving), _end(budgeted)


@pytest.fixture
def solved(both: tuple[Ended, Ended]) -> Ended:
    return both[0]


@pytest.fixture
def spent(both: tuple[Ended, Ended]) -> Ended:
    return both[1]


def _assert_fields(summary: dict[str, Any], fields: dict[str, tuple[type, ...]]) -> None:
    missing = object()
    found = {name: summary.get(name, missing) for name in fields}
    assert {name: value for name, value in found.items() if type(value) not in fields[name]} == {}


def test_two_actors_learn_cartpole_to_a_return_of_475(solved: Ended) -> None:
    assert solved.status == ExitStatus.DONE
    assert solved.summary["reason"] == "target"
    assert 0 < solved.summary["target_step"] <= solved.summary["settled_steps"] <= 150_000 + 8 * 2048
    best = json.loads((solved.directory / "best_evaluation.json").read_text())
    assert best["return_mean"] >= TARGET
    assert best["episodes"] == 20


def test_a_run_ends_with_status_0_when_its_budget_is_spent(spent: Ended) -> None:
    assert spent.status == ExitStatus.DONE
    assert spent.summary["reason"] == "total_steps"
    assert spent.summary["target_step"] is None
    assert BUDGET <= spent.summary["trained_steps"] < BUDGET + 2 * 2048


def test_the_last_line_is_one_json_object_with_every_field(solved: Ended) -> None:
    assert len(solved.out.splitlines()) == 1
    summary = solved.summary
    _assert_fields(summary, _FIELDS)
    assert summary["staleness"].keys() == {"mean", "max", "limit"}
    assert 0 <= summary["staleness"]["mean"] <= summary["staleness"]["max"] <= summary["staleness"]["limit"]
    assert summary["ledger"].keys() == _LEDGER
    assert {type(count) for count in summary["ledger"].values()} == {int}
    assert summary["actors"] == 2
    assert summary["return_episodes"] == 20
    assert summary["steps_per_s"] == pytest.approx(summary["trained_steps"] / summary["train_s"], rel=0.02)
    assert summary["wall_s"] > summary["train_s"]
    assert summary["version"] > summary["updates"] > 0


def test_every_rollout_of_a_run_has_one_outcome(solved: Ended, spent: Ended) -> None:
    for ended in (solved, spent):
        ledger = ended.summary["ledger"]
        assert_books_balance(ledger)
        assert (ledger["refused"], ledger["lost"], ledger["duplicate"]) == (0, 0, 0)
        assert ended.summary["settled_steps"] >= ended.summary["trained_steps"]


def test_no_process_and_no_private_directory_is_left(solved: Ended, spent: Ended) -> None:
    assert solved.left == []
    assert spent.left == []


def test_the_same_command_twice_in_one_directory_makes_two_run_directories(
    solved: Ended, spent: Ended, place: Path
) -> None:
    assert solved.directory != spent.directory
    assert set((place / "runs").iterdir()) == {solved.directory, spent.directory}


def test_progress_goes_to_standard_error_and_names_the_numbers(solved: Ended) -> None:
    words = [
        "another actor:",
        "redis-cli",
        "samples per update",
        "update ",
        "version ",
        "staleness",
        "limit 4",
    ]
    words += ["backlog", "dropped", "actors", "evaluation", "imbalance 0", "ended"]
    assert [word for word in words if word not in solved.err] == []


def test_the_run_directory_holds_the_documented_files(solved: Ended) -> None:
    directory = solved.directory
    assert (directory / "curve.png").read_bytes().startswith(_PNG)
    assert json.loads((directory / "summary.json").read_text()) == solved.summary
    assert list((directory / "checkpoints").glob("checkpoint-*.pt"))
    assert list((directory / "tensorboard").glob("events.out.tfevents.*"))
    assert (directory / "best_policy.msgpack").stat().st_size > 0
    for service in ("broker", "learner", "evaluator", "actor_000", "actor_001", "supervisord"):
        assert (directory / "logs" / f"{service}.log").exists()
    assert not list(directory.rglob("*.writing"))


def test_metrics_csv_has_a_row_for_every_update(solved: Ended) -> None:
    with (solved.directory / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0].keys() == UpdateRecord.__dataclass_fields__.keys()
    assert [int(row["update"]) for row in rows] == list(range(1, solved.summary["updates"] + 1))
    assert int(rows[-1]["trained_steps"]) == solved.summary["trained_steps"]


def test_resume_on_a_new_embedded_server_continues_from_the_checkpoint(spent: Ended, place: Path) -> None:
    steps = spent.summary["trained_steps"] + BUDGET
    more = ["--resume", "--run-dir", str(spent.directory), "--total-steps", str(steps)]
    with Command("train", *more, "--json", cwd=place) as command:
        resumed = _end(command)
    assert resumed.status == ExitStatus.DONE
    assert resumed.directory == spent.directory
    assert resumed.summary["updates"] > spent.summary["updates"]
    assert resumed.summary["version"] > spent.summary["version"]
    assert steps <= resumed.summary["trained_steps"] < steps + 2 * 2048
    assert_books_balance(resumed.summary["ledger"])


def test_serial_reads_the_config_of_a_run_and_flags_override_it(solved: Ended, tmp_path: Path) -> None:
    config = solved.directory / "config.toml"
    again = ["--config", str(config), "--total-steps", str(BUDGET), "--target-return", "501"]
    with Command("serial", *again, "--json", cwd=tmp_path) as serial:
        ended = _end(serial)
    assert ended.status == ExitStatus.DONE
    _assert_fields(ended.summary, _SERIAL_FIELDS | {"refused": (int,)})
    assert not ended.summary.keys() & (_FIELDS.keys() - _SERIAL_FIELDS.keys())
    assert ended.summary["reason"] == "total_steps"
    assert BUDGET <= ended.summary["trained_steps"] < BUDGET + 2 * 2048
    assert (ended.directory / "curve.png").read_bytes().startswith(_PNG)
    used = config.read_text().replace("total_steps = 150000", f"total_steps = {BUDGET}")
    assert (ended.directory / "config.toml").read_text() == used.replace("= 475.0", "= 501.0")


def test_flags_override_arguments_of_the_environment_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('env_id = "CartPole-v1"\n[env_kwargs]\nsutton_barto_reward = false\n')
    again = ["--config", file.name, "--env-kwargs", "sutton_barto_reward", "True", "--total-steps", "8"]
    with Command("serial", *again, "--json", cwd=tmp_path) as serial:
        ended = _end(serial)
    assert ended.status == ExitStatus.DONE
    assert "sutton_barto_reward = true" in (ended.directory / "config.toml").read_text()
