"""`dppo-redis plot RUN_DIR ...`: return against steps of several runs.

Runs that differ only in their seed, and were sampled alike, are drawn as one mean and a band.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import tyro

mpl.use("agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.service.arguments import parse_arguments
from ops.fleet.run_directory import run_in, sampling_in
from ops.screens.curve import CURVE_ROWS, read_metrics

_POINTS = 400
_FORMATS = (".png", ".svg", ".pdf")
Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # steps, return


@dataclass(frozen=True)
class PlotOptions:
    """Compare the training curves of runs; runs that differ only in their seed become one line."""

    run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of the runs"""
    output: Path = Path("curves.png")
    """Picture to write: .png, .svg or .pdf"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parse_arguments(PlotOptions, argv, "dppo-redis plot")
    if not options.run_dirs:
        raise ConfigurationError("name at least one run directory")
    if options.output.suffix.lower() not in _FORMATS:
        raise ConfigurationError(f"--output {options.output}: its name has to end in {', '.join(_FORMATS)}")
    lines = read_lines(options.run_dirs)
    try:
        _draw(lines, options.output)
    except OSError as error:
        raise ConfigurationError(f"cannot write {options.output}: {error.strerror}") from error
    print(options.output)
    return ExitStatus.DONE


def read_lines(directories: Sequence[Path]) -> dict[str, list[Curve]]:
    """The curves of each setting under the name of its first run; each directory counts once.

    Raises:
        ConfigurationError: a directory holds no run, or none that can be drawn.
    """
    settings: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for directory in {path.resolve(): path for path in directories}.values():
        if run_in(directory) is None:
            raise ConfigurationError(f"{directory} holds no run")
        config = load_toml(RunFiles(directory).config).model_copy(update={"seed": 0})
        settings[config.model_dump_json(), sampling_in(directory)].append(directory)
    names = [run_in(group[0]) for group in settings.values()]
    lines = {}
    for name, group in zip(names, settings.values(), strict=True):
        label = str(name) if names.count(name) == 1 else f"{name} in {group[0]}"
        lines[label] = [_curve(directory) for directory in group]
        if max(steps[0] for steps, _ in lines[label]) > min(steps[-1] for steps, _ in lines[label]):
            raise ConfigurationError(f"{label}: the runs of this setting have no step in common")
    return lines


def _curve(directory: Path) -> Curve:
    records = [
        record for record in read_metrics(directory, most=CURVE_ROWS) if record.return_mean is not None
    ]
    if not records:
        raise ConfigurationError(
            f"{directory} has no finished episode in its {RunFiles(directory).metrics.name} yet"
        )
    steps = np.array([float(record.env_steps) for record in records])
    return steps, np.array([record.return_mean for record in records], dtype=np.float64)


def mean_and_spread(curves: Sequence[Curve]) -> tuple[npt.NDArray[np.float64], ...]:
    """(steps, mean, standard deviation) over runs, on the steps that all of them reached."""
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    grid = np.linspace(first, last, _POINTS)
    values = np.stack([np.interp(grid, steps, returns) for steps, returns in curves])
    return grid, values.mean(axis=0), values.std(axis=0)


def _draw(groups: dict[str, list[Curve]], output: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 5.5), constrained_layout=True)
    for label, curves in groups.items():
        steps, mean, spread = mean_and_spread(curves)
        whole_label = f"{label} ({len(curves)} runs)" if len(curves) > 1 else label
        marker = "o" if steps[0] == steps[-1] else ""  # a line of one point cannot be seen
        (line,) = axes.plot(steps, mean, marker=marker, label=whole_label)
        if len(curves) > 1:
            axes.fill_between(steps, mean - spread, mean + spread, alpha=0.2, color=line.get_color())
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return, last 100 training episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    plt.close(figure)
