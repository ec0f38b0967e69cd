"""The curves of all recipes as small multiples: mean and standard deviation over seeds, both modes."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ops.bench.scores.page import ROWS, Row
from ops.bench.scores.records import MODES, Record, of
from ops.commands.plot import Curve, mean_and_spread
from ops.screens.figure import Axes, EngFormatter, Figure

_COLUMNS = 4
_COLOURS = {"serial": "tab:gray", "distributed": "tab:blue"}


def draw(records: Sequence[Record], file: Path) -> None:
    """Write the figure; environments without a record are left out."""
    rows = [row for row in ROWS if any(record.recipe == row.recipe for record in records)]
    height = max(1, math.ceil(len(rows) / _COLUMNS))
    figure = Figure(figsize=(13, 3.1 * height), layout="constrained")
    grid = figure.subplots(height, _COLUMNS, squeeze=False)
    places = list(grid.flat)
    for axes, row in zip(places, rows, strict=False):
        _panel(axes, row, records)
    for axes in places[len(rows) :]:
        axes.set_axis_off()
    handles = {h.get_label(): h for axes in places[: len(rows)] for h in axes.get_lines()}
    names = [name for name in ("serial", "distributed", "to reach") if name in handles]
    figure.legend(
        [handles[name] for name in names], names, loc="outside lower center", ncols=3, frameon=False
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


def _panel(axes: Axes, row: Row, records: Sequence[Record]) -> None:
    for mode in MODES:
        curves = [_arrays(record) for record in of(records, row.recipe, mode)]
        if curves:
            steps, mean, spread = mean_and_spread(curves)
            axes.plot(steps, mean, color=_COLOURS[mode], label=mode)
            axes.fill_between(steps, mean - spread, mean + spread, color=_COLOURS[mode], alpha=0.2, lw=0)
    if row.target is not None:
        axes.axhline(row.target, color="tab:red", linestyle="--", linewidth=1, label="to reach")
    axes.set_title(row.env_id, fontsize=10)
    axes.set_xlabel("trained steps")
    axes.set_ylabel("training return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)


def _arrays(record: Record) -> Curve:
    steps, returns = zip(*record.curve, strict=True)
    return np.array(steps, dtype=np.float64), np.array(returns, dtype=np.float64)
