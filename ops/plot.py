"""curve.png of a run: return against steps and against time, staleness below."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from dppo_redis.files import read_table
from dppo_redis.run_files import RunFiles

Row = dict[str, str]


def plot_run(directory: Path, title: str, last: tuple[int, float] | None = None) -> Path | None:
    """Draw the curve of a run from its metrics.csv; None when there is nothing to draw yet.

    `last` is the (env_steps, return) of an evaluation made after the last update.
    """
    rows = read_metrics(directory)
    if not rows:
        return None
    if last is not None:
        rows.append(dict.fromkeys(rows[-1], "") | {
            "train_s": rows[-1]["train_s"],
            "evaluation_steps": str(last[0]),
            "evaluation_return": str(last[1]),
        })  # fmt: skip
    figure, axes = plt.subplots(
        2, 2, figsize=(11, 6.5), height_ratios=(3, 1), sharex="col", constrained_layout=True
    )
    figure.suptitle(title)
    for column, (x_name, label) in enumerate((("env_steps", "environment steps"), ("train_s", "seconds"))):
        _returns(axes[0, column], rows, x_name)
        _staleness(axes[1, column], rows, x_name)
        axes[1, column].set_xlabel(label)
        axes[1, column].xaxis.set_major_formatter(EngFormatter(sep=""))
    curve = RunFiles(directory).curve
    figure.savefig(curve, dpi=110)
    plt.close(figure)
    return curve


def _returns(axes: Axes, rows: Sequence[Row], x_name: str) -> None:
    x, y = _series(rows, x_name, "return_mean")
    axes.plot(x, y, label="training, last 100 episodes")
    x, y = _evaluations(rows, x_name)
    axes.plot(x, y, "o", markersize=4, label="greedy evaluation")
    axes.set_ylabel("return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)


def _staleness(axes: Axes, rows: Sequence[Row], x_name: str) -> None:
    x, mean = _series(rows, x_name, "staleness_mean")
    _, most = _series(rows, x_name, "staleness_max")
    axes.fill_between(x, 0, most, alpha=0.25, label="max", step="mid")
    axes.plot(x, mean, label="mean")
    axes.set_ylabel("staleness\n(updates)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, ncols=2)


def _series(rows: Sequence[Row], x_name: str, y_name: str) -> tuple[list[float], list[float]]:
    points = [(float(row[x_name]), float(row[y_name])) for row in rows if row[y_name]]
    return [x for x, _ in points], [y for _, y in points]


def _evaluations(rows: Sequence[Row], x_name: str) -> tuple[list[float], list[float]]:
    """Each evaluation once; against steps at those of the weights it played, else when it was known."""
    points: dict[str, tuple[float, float]] = {}
    for row in rows:
        played = row["evaluation_steps"]
        if played and played not in points:
            x = float(played if x_name == "env_steps" else row[x_name])
            points[played] = (x, float(row["evaluation_return"]))
    return [x for x, _ in points.values()], [y for _, y in points.values()]


def read_metrics(directory: Path) -> list[Row]:
    """The whole rows of a run's metrics.csv; none where there is no file."""
    return read_table(RunFiles(directory).metrics)
