"""Ends a training command: checks the last save, writes curve and summary, chooses the exit status. No
Redis."""

import importlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dppo_redis.artefacts.run_files import RunFiles, checkpoint_files, number_of
from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.service.logs import answer
from dppo_redis.service.plugins import first_line
from dppo_redis.service.shutdown import StopRequest
from ops.fleet.run_directory import RunDirectory, write_summary
from ops.screens.tables import RunConsole, make_console, progress_stream, summary_table

UNSAVED = "unsaved"
_log = logging.getLogger("dppo")


def with_warning(summary: RunSummary, text: str) -> RunSummary:
    """Add a warning to the summary and log it."""
    _log.error("%s", text)
    return replace(summary, warnings=(*summary.warnings, text))


def with_save_checked(summary: RunSummary, directory: RunDirectory) -> RunSummary:
    """The summary, with the reason `unsaved` if no checkpoint holds the last update."""
    saved = (file for file in checkpoint_files(directory.files.checkpoints) if file.is_file())
    newest = max(map(number_of, saved), default=-1)
    if summary.reason == "failed" or newest >= summary.updates or summary.updates == 0:
        return summary
    start = f"with update {newest}" if newest >= 0 else "from the beginning"
    text = f"the training up to update {summary.updates} is not saved: a resumed run starts {start}"
    return replace(with_warning(summary, text), reason=UNSAVED)


def prepare_to_draw() -> None:
    """Import the drawing module for `write_results` in a thread, while the command waits for the services."""
    threading.Thread(
        target=importlib.import_module, args=("ops.screens.curve",), name="import of matplotlib", daemon=True
    ).start()


@dataclass(frozen=True)
class Times:
    """The times of a command that trained, from which its summary gets the durations."""

    started: float  # by the monotonic clock
    first_update: float  # seconds since 1970 at the end of the first update; 0 without an update
    training_ended: float  # by the monotonic clock; 0 if training has not ended

    def added_to(self, summary: RunSummary) -> RunSummary:
        """The summary with its durations up to now."""
        now = time.monotonic()
        began = time.time() - (now - self.started)
        return replace(
            summary,
            wall_s=now - self.started,
            first_update_s=max(0.0, self.first_update - began) if self.first_update else None,
            end_s=now - self.training_ended if self.training_ended else None,
        )


def write_results(directory: RunDirectory, summary: RunSummary, times: Times) -> RunSummary:
    """Draw the curve and write the summary; returns the summary with a warning for each that failed."""
    evaluation = summary.evaluation
    last = None if evaluation is None else (evaluation.settled_steps, evaluation.return_mean)

    def draw() -> None:
        from ops.screens.curve import plot_run  # this import takes half a second

        plot_run(directory.path, directory.run, last)

    summary = _with_warning_on_error(summary, RunFiles(directory.path).curve.name, draw)
    summary = written = times.added_to(summary)
    return _with_warning_on_error(
        summary, directory.files.summary.name, lambda: write_summary(directory.path, written)
    )


def _with_warning_on_error(summary: RunSummary, file: str, action: Callable[[], None]) -> RunSummary:
    try:
        action()
    except Exception as error:  # noqa: BLE001 an error with a file must not fail a trained run
        return with_warning(
            summary, f"{file} could not be written: {type(error).__name__}: {first_line(error)}"
        )
    return summary


def report_finished(directory: RunDirectory, summary: RunSummary, *, as_json: bool) -> ExitStatus:
    """Report that the run was finished by an earlier command; returns the exit status."""
    _log.info(
        "run %s is finished: to continue it, pass a larger --total-steps; for a new run, another --run",
        directory.run,
    )
    make_console(progress_stream(as_json), RunConsole).print(summary_table(summary))
    if as_json:
        answer(json.dumps(to_json(summary)))
    return ExitStatus.DONE


def status_of_end(summary: RunSummary, stop: StopRequest) -> ExitStatus:
    """The exit status of the command."""
    return ExitStatus.IO_ERROR if summary.reason == UNSAVED else stop.exit_status
