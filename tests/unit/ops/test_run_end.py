"""The last files of a run: a file that cannot be written is a warning and does not fail the run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dppo_redis.artefacts.run_files import checkpoint_name
from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.service.shutdown import StopRequest
from ops.fleet.run_directory import RunDirectory
from ops.screens.run_end import Times, status_of_end, with_save_checked, write_results
from tests.factories import make_summary


def times() -> Times:
    """The times of a command that began 9 s ago."""
    now = time.monotonic()
    return Times(started=now - 9, first_update=time.time() - 7, training_ended=now - 1)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory("mine", tmp_path)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ValueError("two\nlines"), MemoryError()]
)
def test_a_figure_that_fails_for_any_reason_is_a_warning_in_the_written_summary(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ops.screens.curve.plot_run", fail)
    summary = write_results(directory, make_summary(), times())
    (warning,) = summary.warnings
    assert warning.startswith(f"curve.png could not be written: {type(error).__name__}: ")
    assert "\n" not in warning
    assert json.loads(directory.files.summary.read_text()) == to_json(summary)
    assert status_of_end(summary, StopRequest()) is ExitStatus.DONE


def test_a_summary_says_how_long_the_command_its_start_and_its_end_took(directory: RunDirectory) -> None:
    summary = write_results(directory, make_summary(), times())
    assert summary.first_update_s == pytest.approx(2, abs=0.1)
    assert summary.wall_s - 9 == pytest.approx(summary.end_s - 1 if summary.end_s else None, abs=0.1)
    assert 1 <= (summary.end_s or 0) < 60
    none = write_results(
        directory, make_summary(), Times(time.monotonic(), first_update=0.0, training_ended=0.0)
    )
    assert (none.first_update_s, none.end_s) == (None, None)


def test_a_summary_that_cannot_be_written_is_a_warning_in_the_shown_summary(directory: RunDirectory) -> None:
    directory.files.summary.mkdir()
    assert (
        write_results(directory, make_summary(), times())
        .warnings[0]
        .startswith("summary.json could not be written: IsADirectoryError")
    )


@pytest.mark.parametrize(
    ("saved", "updates", "reason"),
    [
        ([], 0, "stopped"),  # stopped before the first update
        ([], 3, "unsaved"),
        ([0, 2], 3, "unsaved"),
        ([0, 3], 3, "stopped"),
        ([4], 3, "stopped"),  # the status was one update behind
    ],
)
def test_a_run_is_unsaved_if_no_checkpoint_holds_its_last_update(
    directory: RunDirectory, saved: list[int], updates: int, reason: str
) -> None:
    directory.files.checkpoints.mkdir()
    for update in saved:
        (directory.files.checkpoints / checkpoint_name(update)).write_bytes(b"")
    summary = with_save_checked(make_summary(updates=updates), directory)
    assert summary.reason == reason
    assert len(summary.warnings) == (reason == "unsaved")
    expected = ExitStatus.IO_ERROR if reason == "unsaved" else ExitStatus.DONE
    assert status_of_end(summary, StopRequest()) is expected


def test_a_failed_run_stays_failed(directory: RunDirectory) -> None:
    assert with_save_checked(make_summary(reason="failed", updates=3), directory).reason == "failed"


@pytest.mark.parametrize(
    "backend", ["module://matplotlib_inline.backend_inline", "inline", "nonsense", "TkAgg", "", None]
)
def test_mplbackend_does_not_affect_figures_and_is_kept_for_child_processes(
    tmp_path: Path, backend: str | None
) -> None:
    program = (
        "import os; from ops.screens.figure import Figure\n"
        "figure = Figure(); figure.subplots().plot([1, 2]); figure.savefig('x.png')\n"
        "print(os.environ.get('MPLBACKEND'))"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    chosen = {} if backend is None else {"MPLBACKEND": backend}
    path = str(Path(__file__).parents[3])
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**inherited, **chosen, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, f"{backend}\n"), answer.stderr
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
