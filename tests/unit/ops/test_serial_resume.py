"""A serial run that continues from its checkpoint."""

import csv
import fcntl
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.shutdown import StopRequest
from ops.commands.serial import main
from ops.fleet.run_directory import sampling_in
from ops.screens.tables import make_console
from ops.serial import Serial, make_serial
from tests.factories import make_config, spaces_of


@pytest.fixture(autouse=True)
def no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command keeps its lock until its process ends, and here several run in one."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


LINE = (
    *("tests.envs:Terminating-v0", "--envs-per-actor", "2", "--rollout-steps", "4", "--run-dir", "run"),
    *("--ppo.batch-steps", "8", "--ppo.minibatch-size", "8", "--evaluation.episodes", "1", "--run", "mine"),
)


def trained(run_dir: Path, total_steps: int, **knobs: Any) -> Serial:
    """Train a run with this budget, or the rest of the run in the directory."""
    config = make_config(
        **{
            "env_id": "tests.envs:Terminating-v0",
            "envs_per_actor": 2,
            "actors": 2,
            "rollout_steps": 4,
            "total_steps": total_steps,
            "segment_updates": 2,
            "ppo": {"batch_steps": 16, "minibatch_size": 8},
            **knobs,
        }
    )
    planned = plan(config, spaces_of(config), serial=True)
    serial = make_serial(planned, run_dir, make_console(io.StringIO()), StopRequest(), run="mine")
    serial.run()
    serial.close()
    serial.save()
    return serial


def test_in_lock_step_mode_a_resumed_run_equals_one_without_a_break(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 96, lock_step=True)
    trained(tmp_path / "broken", 48, lock_step=True)  # in the middle of a segment
    rest = trained(tmp_path / "broken", 96, lock_step=True)
    assert rest.training.progress.update == whole.training.progress.update == 6
    mine, theirs = (one.training.ppo.acting_arrays() for one in (rest, whole))
    assert all(np.array_equal(mine[name], array) for name, array in theirs.items())


def test_counters_and_rows_continue_and_other_episodes_are_played(tmp_path: Path) -> None:
    first = trained(tmp_path, 32)
    rest = trained(tmp_path, 64)
    assert first.training.progress.update < rest.training.progress.update
    assert rest.training.progress.trained_steps >= 64
    assert rest.training.progress.train_s > first.training.progress.train_s
    with (tmp_path / "metrics.csv").open() as file:
        rows = [int(row["update"]) for row in csv.DictReader(file)]
    assert rows == list(range(1, rest.training.progress.update + 1))


def test_a_run_whose_budget_is_spent_trains_no_more(tmp_path: Path) -> None:
    first = trained(tmp_path, 32)
    again = trained(tmp_path, 32)
    assert again.training.progress.update == first.training.progress.update
    assert again.summary().reason == "total_steps"


def test_resume_auto_refuses_the_same_changes_as_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*LINE, "--total-steps", "16", "--age", "1"]) == ExitStatus.DONE
    for how in (["--resume", "auto"], ["--resume"]):
        with pytest.raises(ConfigurationError, match="network"):
            main([*LINE, *how, "--network.hidden", "3"])
        with pytest.raises(ConfigurationError, match="keeps its age, 1"):
            main([*LINE, *how, "--age", "2"])
    assert main([*LINE, "--total-steps", "40", "--resume", "auto"]) == ExitStatus.DONE
    assert sampling_in(Path("run")) == "one process, age 1"


def test_serial_refuses_to_resume_a_run_of_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*LINE, "--total-steps", "16"]) == ExitStatus.DONE
    identity = Path("run/run.json")
    identity.write_text(identity.read_text().replace("one process, age 0", "a fleet"))
    with pytest.raises(ConfigurationError, match="dppo-redis train"):
        main([*LINE, "--total-steps", "40", "--resume", "auto"])
