"""`dppo-redis plot RUN_DIR ...`: draws return against steps of several runs.

Runs that differ only in their seed, and were sampled in the same way, become one line: mean and standard
deviation. Each environment has its own panel. Labels name the settings that differ. The command leaves out
directories without a run, and names them.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import tyro

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.service.arguments import parse_arguments
from ops.fleet.run_directory import run_in, sampling_in
from ops.policies.which_run import find_run_directories, not_a_run
from ops.screens.curve import CURVE_ROWS, read_metrics
from ops.screens.figure import Axes, EngFormatter, Figure

_POINTS = 400
_FORMATS = (".png", ".svg", ".pdf")
_COLUMNS = 3  # panels side by side
_MOST_DIFFERING = 4  # values in a label
_MOST_SEEDS = 8
Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # steps, return
Panels = dict[str, dict[str, list[Curve]]]  # by environment, then by label


@dataclass(frozen=True)
class PlotOptions:
    """Compare the training curves of runs. Runs that differ only in their seed become one line.

    The command leaves out directories without a run or without finished episodes, and names them.
    """

    run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")] = ()
    """Directories of runs, or names of runs in runs/"""
    output: Path = Path("curves.png")
    """File for the picture: .png, .svg or .pdf"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Raises:
        ConfigurationError: the user named no run, or the figure cannot be written.
    """
    options = parse_arguments(PlotOptions, argv, "dppo-redis plot")
    directories = find_run_directories(options.run_dirs)
    if options.output.suffix.lower() not in _FORMATS:
        raise ConfigurationError(f"--output {options.output}: the name must end in {', '.join(_FORMATS)}")
    panels = read_panels(directories)
    try:
        _draw(panels, options.output)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {options.output}: {error.strerror}: choose another --output"
        ) from error
    print(options.output)
    return ExitStatus.DONE


def read_panels(directories: Sequence[Path]) -> Panels:
    """The curves by environment, then by the settings that differ. A directory named twice counts once.

    Runs of one setting without common steps have no mean: each is its own line. The function leaves out
    directories that cannot be drawn, and names them on standard error.

    Raises:
        ConfigurationError: none of the directories can be drawn.
    """
    runs, left_out = _read({path.resolve(): path for path in directories}.values())
    if not runs:
        several = f" (none of these {len(left_out)} can be drawn)" if len(left_out) > 1 else ""
        raise ConfigurationError(f"{left_out[0]}{several}")
    for reason in left_out:
        print(f"dppo-redis plot: left out: {reason}", file=sys.stderr)
    panels: dict[str, dict[tuple[str, ...], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        panels[run.environment][tuple(f"{k}={v}" for k, v in run.setting.items())].append(run)
    return {env: _lines([*settings.values()]) for env, settings in panels.items()}


def _lines(settings: list[list["Run"]]) -> dict[str, list[Curve]]:
    """The lines of one panel under their labels."""
    groups = [(part, label) for label, group in _labelled(settings) for part in _with_common_steps(group)]
    if len(groups) == 1 and len(groups[0][0]) > 1:
        ((runs, _),) = groups
        return {f"seeds {', '.join(run.seed for run in runs[:_MOST_SEEDS])}": [run.curve for run in runs]}
    labels = [label or part[0].name for part, label in groups]
    unique = [
        label if labels.count(label) == 1 else f"{label}, {part[0].name}"
        for (part, _), label in zip(groups, labels, strict=True)
    ]
    return {
        label if unique.count(label) == 1 else f"{label} in {part[0].directory}": [run.curve for run in part]
        for (part, _), label in zip(groups, unique, strict=True)
    }


def _labelled(settings: list[list["Run"]]) -> list[tuple[str, list["Run"]]]:
    """Each group of runs with a label: the values in which its setting differs; "" if too many differ."""
    names = dict.fromkeys(name for group in settings for name in group[0].setting)
    differing = [name for name in names if len({group[0].setting.get(name) for group in settings}) > 1]
    if not 0 < len(differing) <= _MOST_DIFFERING:
        return [("", group) for group in settings]
    return [
        (", ".join(f"{name} {group[0].setting.get(name, '-')}" for name in differing), group)
        for group in settings
    ]


@dataclass(frozen=True)
class Run:
    """One run of the figure."""

    directory: Path
    name: str
    environment: str
    seed: str
    setting: dict[str, str]  # other settings by dotted name, and how the run was sampled
    curve: Curve


def _read(directories: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be drawn, and for each other directory the reason why not."""
    runs, left_out = [], []
    for directory in directories:
        try:
            runs.append(_read_run(directory))
        except ConfigurationError as error:
            left_out.append(str(error))
        except OSError as error:
            left_out.append(f"{directory} cannot be read: {error.strerror}")
    return runs, left_out


def _read_run(directory: Path) -> Run:
    name = run_in(directory)
    if name is None:
        raise not_a_run(directory)
    setting = dict(_flat(load_toml(RunFiles(directory).config).model_dump(mode="json")))
    environment, seed = setting.pop("env_id"), setting.pop("seed")
    return Run(
        directory,
        name,
        environment,
        seed,
        {**setting, "sampled by": sampling_in(directory)},
        _curve(directory),
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of a configuration and its sections, by their names as flags, for example ppo.gamma."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def _with_common_steps(group: list[Run]) -> list[list[Run]]:
    """The whole group if all its runs have steps in common, else one group for each run."""
    first = max(run.curve[0][0] for run in group)
    last = min(run.curve[0][-1] for run in group)
    return [group] if first <= last else [[run] for run in group]


def _curve(directory: Path) -> Curve:
    records = [
        record for record in read_metrics(directory, most=CURVE_ROWS) if record.return_mean is not None
    ]
    if not records:
        raise ConfigurationError(
            f"{directory} has no finished episode in {RunFiles(directory).metrics.name} yet"
        )
    steps = np.array([float(record.settled_steps) for record in records])
    return steps, np.array([record.return_mean for record in records], dtype=np.float64)


def mean_and_spread(curves: Sequence[Curve]) -> tuple[npt.NDArray[np.float64], ...]:
    """Steps, mean and standard deviation over runs, each [points], for the steps that all runs have."""
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    grid = np.linspace(first, last, _POINTS)
    values = np.stack([np.interp(grid, steps, returns) for steps, returns in curves])
    return grid, values.mean(axis=0), values.std(axis=0)


def _draw(panels: Panels, output: Path) -> None:
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(9, 6 * columns), 5.5 if rows == 1 else 4.5 * rows), layout="constrained")
    panel_axes = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (environment, lines) in zip(panel_axes, panels.items(), strict=False):
        _draw_panel(axes, environment, lines)
    for unused in list(figure.axes)[len(panels) :]:
        unused.remove()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)


def _draw_panel(axes: Axes, environment: str, lines: dict[str, list[Curve]]) -> None:
    for label, curves in lines.items():
        steps, mean, spread = mean_and_spread(curves)
        whole_label = f"{label} (mean ± std of {len(curves)} runs)" if len(curves) > 1 else label
        marker = "o" if steps[0] == steps[-1] else ""  # a line of one point is invisible
        (line,) = axes.plot(steps, mean, marker=marker, label=whole_label)
        if len(curves) > 1:
            axes.fill_between(steps, mean - spread, mean + spread, alpha=0.2, color=line.get_color())
    axes.set_title(environment)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return, last 100 training episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
