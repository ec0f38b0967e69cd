"""A failed last save is reported with its own exit status; a failed figure does not change the status."""

from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.service.files import read_table
from tests.conftest import wait_until
from tests.e2e.support import SLOW, Command, assert_nothing_left

# Notebooks set this variable for the commands that they start.
_NOTEBOOK = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
_NONSENSE = {"MPLBACKEND": "no backend at all"}


def _block_checkpoints(checkpoints: Path) -> None:
    """Make writing checkpoints impossible; moves the existing ones away."""
    if checkpoints.exists():
        checkpoints.rename(checkpoints.with_name("aside"))
    checkpoints.write_text("a file")


def _unblock_checkpoints(checkpoints: Path) -> None:
    checkpoints.unlink()
    if checkpoints.with_name("aside").exists():
        checkpoints.with_name("aside").rename(checkpoints)


@pytest.mark.parametrize(
    ("program", "begun"), [("train", "training: "), pytest.param("serial", "steps, ", marks=pytest.mark.slow)]
)
def test_a_failed_last_checkpoint_is_reported_and_a_resumed_run_starts_with_the_previous_one(
    tmp_path: Path, program: str, begun: str
) -> None:
    line = [program, *SLOW, "--total-steps", "1200", "--run-dir", "run", "--resume", "auto", "--json"]
    checkpoints, curve = tmp_path / "run" / "checkpoints", tmp_path / "run" / "curve.png"
    with Command(*line, cwd=tmp_path, environment=_NOTEBOOK) as command:
        command.wait_for_output(begun, 60)
        wait_until(lambda: any(checkpoints.glob("*.pt")), 30, "there is a checkpoint")
        _block_checkpoints(checkpoints)
        assert command.wait(60) == ExitStatus.IO_ERROR, command.err
        summary = command.summary()
        assert_nothing_left(command)
        assert command.err.count("unsaved") >= 1  # in the table
        assert "Traceback" not in command.err
        log = command.err if program == "serial" else (tmp_path / "run/logs/learner.log").read_text()
    assert summary["reason"] == "unsaved"
    warnings = " / ".join(summary["warnings"])
    assert "cannot save" in warnings
    assert f"up to update {summary['updates']} is not saved" in warnings
    assert curve.exists()
    assert log.count("the run has ended, trying to save again") == 3
    assert log.count("this was the last try") == 1
    assert "training continues" not in log.partition("the run has ended")[2]
    if program == "train":
        assert "learner (exit status 74; expected)" in (tmp_path / "run/logs/supervisord.log").read_text()
    _unblock_checkpoints(checkpoints)
    curve.unlink()
    curve.mkdir()  # no figure can be written
    with Command(*line, cwd=tmp_path, environment=_NONSENSE) as command:
        assert command.wait(60) == ExitStatus.DONE, command.err
        again = command.summary()
    assert again["reason"] == "total_steps"
    assert any(
        text.startswith("curve.png could not be written: IsADirectoryError") for text in again["warnings"]
    )
    rows = read_table(tmp_path / "run" / "metrics.csv")
    assert [int(row["update"]) for row in rows] == list(range(1, again["updates"] + 1))
