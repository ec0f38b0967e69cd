"""Builds the console, and the table at the end of a run, for `train` and `serial`. No Redis."""

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from dppo_redis.protocol.reports import RunSummary
from dppo_redis.service.logs import answers


def printable(text: str) -> str:
    """One line of text without control characters, for text from other processes."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


class RunConsole(Console):
    """The console of a training command. Errors of its output do not end the run."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, as the reader (`head`, a killed `tee`) has ended. rich would end this
        process."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def print(self, *objects: Any, **style: Any) -> None:
        """Print. Text that a full disk refuses is written with the next line."""
        with contextlib.suppress(OSError):
            super().print(*objects, **style)


def make_console(stream: TextIO | None = None, kind: type[Console] = Console) -> Console:
    """A console that prints square brackets unchanged: messages and paths contain them."""
    return kind(file=stream or answers(), markup=False, emoji=False)


def summary_table(summary: RunSummary) -> Table:
    """The table of a finished run's results."""
    table = Table(title="summary", show_header=False, title_justify="left")
    for name, value in _summary_rows(summary):
        table.add_row(name, value)
    return table


def _summary_rows(summary: RunSummary) -> list[tuple[str, str]]:
    target = f" at {summary.target_step:,} steps" if summary.target_step is not None else ""
    rows = [
        ("ended", f"{summary.reason}{target}"),
        ("evaluation", f"{_number(summary.return_mean)} over {summary.return_episodes} greedy episodes"),
        ("training return", f"{_number(summary.train_return_mean)} over the last 100 episodes"),
        *_metric_rows(summary),
        ("steps", f"{summary.settled_steps:,} sampled, {summary.trained_steps:,} trained on"),
        ("time", f"{summary.train_s:.1f} s of training by all commands, {summary.wall_s:.1f} s this command"),
        ("speed", f"{summary.steps_per_s:,.0f} steps/s"),
    ]
    if summary.refused:
        rows.append(("refused", f"{summary.refused:,} rollouts, with reasons in the log"))
    version = "" if summary.version is None else f", weights version {summary.version:,}"
    rows.append(("updates", f"{summary.updates:,}{version}"))
    if (staleness := summary.staleness) is not None:
        rows.append(
            ("staleness", f"mean {staleness.mean:.2f}, max {staleness.max}, limit {staleness.limit}"),
        )
    if (ledger := summary.ledger) is not None:
        refused = f"{ledger.refused} refused + {ledger.lost} lost"
        drops = f"{ledger.stale} stale + {ledger.duplicate} duplicate + {refused}"
        settled = f"{ledger.entries_added:,} rollouts = {ledger.trained:,} trained + {drops}"
        rows.append(("ledger", f"{settled} + {ledger.backlog} left (imbalance {ledger.imbalance})"))
    rows.append(("the learner waited", f"{100 * summary.learner_wait_share:.0f} % of the last minute"))
    rows += [("warning", text) for text in summary.warnings]
    rows.append(("artefacts", summary.run_dir))
    return rows


def _metric_rows(summary: RunSummary) -> list[tuple[str, str]]:
    """The rows of the environment's own metrics; none if it reported none."""
    evaluated = {} if summary.evaluation is None else summary.evaluation.metrics
    rows = [("evaluation metrics", evaluated), ("training metrics", summary.metrics)]
    return [(name, describe_metrics(metrics)) for name, metrics in rows if metrics]


def describe_metrics(metrics: Mapping[str, float], most: int | None = None) -> str:
    """Names and means as text, at most `most` of them."""
    shown = ", ".join(f"{name} {mean:.4g}" for name, mean in list(metrics.items())[:most])
    return f"{shown} ..." if most is not None and len(metrics) > most else shown


def progress_of_first_rollouts(done: int, length: int, seconds: float) -> str:
    """The progress of the first update's rollouts as text: `done` of `length` steps in `seconds`."""
    left_s = seconds / done * (length - done) if done else 0.0
    estimate = f", about {duration(left_s)} left" if done and left_s else ""
    return f"first rollouts: {done} of {length} steps{estimate}"


def duration(seconds: float) -> str:
    """A duration as text: `2 h 5 min`, `3 min 20 s` or `45 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def progress_stream(json: bool) -> TextIO:
    """The stream for progress: standard error with --json, so that standard output holds only the JSON."""
    return sys.stderr if json else answers()
