"""Draws curve.png of a run: return against steps and against time, with the staleness below."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import EVALUATED, UpdateRecord
from dppo_redis.service.files import read_lines, split_row
from ops.screens.figure import Axes, EngFormatter, Figure

Column = Callable[[UpdateRecord], float | None]
CURVE_ROWS = 4_000  # a curve with more rows looks the same
Points = tuple[list[float], list[float]]


def plot_run(directory: Path, title: str, last: tuple[int, float] | None = None) -> Path | None:
    """Draw the curve of a run from its metrics.csv; returns None if there are no rows yet.

    `last` is the (settled_steps, return) of an evaluation made after the last update.
    """
    records = read_metrics(directory, most=CURVE_ROWS)
    if not records:
        return None
    evaluated = records
    if last is not None:
        evaluated = [*records, replace(records[-1], evaluation_steps=last[0], evaluation_return=last[1])]
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots(2, 2, height_ratios=(3, 1), sharex="col")
    figure.suptitle(title)
    columns: tuple[tuple[str, Column, Column], ...] = (  # label, x of an update, x of its evaluation
        ("environment steps", lambda record: record.settled_steps, lambda record: record.evaluation_steps),
        ("seconds", lambda record: record.train_s, lambda record: record.train_s),
    )
    for column, (label, x_of, evaluated_at) in enumerate(columns):
        training = _points(records, x_of, lambda record: record.return_mean)
        _draw_returns(axes[0, column], training, _evaluation_points(evaluated, evaluated_at))
        _draw_staleness(axes[1, column], records, x_of)
        axes[1, column].set_xlabel(label)
        axes[1, column].xaxis.set_major_formatter(EngFormatter(sep=""))
    curve = RunFiles(directory).curve
    figure.savefig(curve, dpi=110)
    return curve


def _draw_returns(axes: Axes, training: Points, evaluations: Points) -> None:
    axes.plot(*training, label="training, last 100 episodes")
    axes.plot(*evaluations, "o", markersize=4, label="greedy evaluation")
    axes.set_ylabel("return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)


def _draw_staleness(axes: Axes, records: Sequence[UpdateRecord], x_of: Column) -> None:
    x, mean = _points(records, x_of, lambda record: record.staleness_mean)
    _, most = _points(records, x_of, lambda record: record.staleness_max)
    axes.fill_between(x, 0, most, alpha=0.25, label="max", step="mid")
    axes.plot(x, mean, label="mean")
    axes.set_ylabel("staleness\n(updates)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, ncols=2)


def _points(records: Iterable[UpdateRecord], x_of: Column, y_of: Column) -> Points:
    pairs = [(x_of(record), y_of(record)) for record in records]
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _evaluation_points(records: Sequence[UpdateRecord], x_of: Column) -> Points:
    """One point for each evaluation, at the x of the first record that contains it."""
    first = {record.evaluation_steps: record for record in reversed(records) if record.evaluation_steps}
    return _points(reversed(first.values()), x_of, lambda record: record.evaluation_return)


def read_metrics(directory: Path, most: int | None = None) -> list[UpdateRecord]:
    """The complete rows of a run's metrics.csv; an empty list without the file.

    A run may have a million rows. `most` keeps about as many of them, evenly spread, and as many of the rows
    with a new evaluation; None keeps all.
    """
    lines = read_lines(RunFiles(directory).metrics)
    header = split_row(next(lines, ""))
    if most is not None and EVALUATED in header:
        lines = _thinned(lines, header.index(EVALUATED), most)
    rows = (row for row in map(split_row, lines) if len(row) == len(header))
    named = (dict(zip(header, row, strict=True)) for row in rows)
    return [from_fields(UpdateRecord, row, finite=False) for row in named]


def _thinned(lines: Iterable[str], evaluated: int, most: int) -> Iterator[str]:
    """The last row, `most` / 2 to `most` other rows, and at most as many rows with a new evaluation, in
    order."""
    even, evaluations = ThinnedPoints(most), ThinnedPoints(most)
    last, seen = (-1, ""), ""
    for last in enumerate(lines):
        even.add(last)
        evaluation = last[1].split(",", evaluated + 1)[evaluated : evaluated + 1]  # quoted columns come later
        if evaluation and evaluation[0] != seen:
            seen = evaluation[0]
            evaluations.add(last)
    kept = dict([*even.kept, *evaluations.kept, last])
    return (kept[number] for number in sorted(kept) if number >= 0)


class ThinnedPoints:
    """Keeps every k-th of the added rows, k = 1, 2, 4 ..., so that at most `most` are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._every = 1
        self._added = 0
        self.kept: list[tuple[int, str]] = []

    def add(self, row: tuple[int, str]) -> None:
        """Add a row with its number."""
        if self._added % self._every == 0:
            self.kept.append(row)
        self._added += 1
        if len(self.kept) > self._most:
            self.kept = self.kept[::2]
            self._every *= 2
