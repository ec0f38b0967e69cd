"""Lock-step runs and serial runs of both sides: the same checkpoints, tables, files and episodes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.photographs.comparing import TIMED, UNREPEATABLE, csv_rows, differences
from tests.photographs.configurations import CARTPOLE, CASES, LOCK_STEP, Case
from tests.photographs.sides import Side, Sides, at_once

MODES = {
    "serial lock-step": ("serial", *LOCK_STEP),
    "fleet of 2": ("train", *LOCK_STEP),
    "serial": ("serial",),
}


def last_checkpoint(directory: Path) -> dict[str, Any]:
    """All parts of the newest checkpoint, weights and optimiser included."""
    newest = max((directory / "checkpoints").glob("checkpoint-*.pt"))
    values = torch.load(newest, weights_only=True)
    return {"file": newest.name, **values}


def loaded(directory: Path) -> dict[str, Any]:
    """The results that two runs of one seed share: the learner, the rows, the configuration."""
    return {
        "checkpoint": last_checkpoint(directory),
        "metrics.csv": csv_rows((directory / "metrics.csv").read_text()),
        "config.toml": (directory / "config.toml").read_text(),
        "run.json": (directory / "run.json").read_text(),
    }


def compare_learnt(old: Path, new: Path) -> list[str]:
    """The differences between two run directories."""
    return differences(loaded(old), loaded(new), TIMED | UNREPEATABLE)


def photograph(sides: Sides, case: Case, mode: str) -> Iterator[tuple[str, list[str]]]:
    """Run one case on both sides in one mode."""
    command, *words = MODES[mode]
    name = f"{case.name}-{mode.replace(' ', '-')}"
    arguments = (command, *case.arguments(), *words, "--run", name, "--run-dir", name)
    summaries = at_once({side.name: partial(side.summary, *arguments) for side in sides.both()})
    old, new = (side.place / name for side in sides.both())
    yield f"{case.name}, {mode}", compare_learnt(old, new)
    keys = [list(summaries[side.name]) for side in sides.both()]
    files = [sorted(child.name for child in directory.iterdir()) for directory in (old, new)]
    yield (
        f"{case.name}, {mode}: files and keys of the summary",
        differences([keys[0], files[0]], [keys[1], files[1]]),
    )


def exported(side: Side, run: Path) -> dict[str, Any]:
    """An export of a run, and the episodes that its policy plays."""
    target = side.place / f"export-{run.parent.name}-{run.name}"
    side.run("export", str(run), "--to", str(target), "--checkpoint", "last", "--onnx", "no")
    played = side.summary("evaluate", str(run), "--checkpoint", "last", "--episodes", "3")
    again = side.summary("evaluate", str(target), "--episodes", "3")
    for summary in (played, again):
        del summary["interval"]  # earlier releases computed Student's t with four digits only
    return {
        "episodes": played,
        "episodes of the export": again,
        **{f.name: f.read_bytes() for f in target.iterdir()},
    }


def photograph_exports(sides: Sides, case: Case) -> Iterator[tuple[str, list[str]]]:
    """Both sides export and play the policy of the old side."""
    run = sides.old.place / f"{case.name}-serial-lock-step"
    found = at_once({side.name: partial(exported, side, run) for side in sides.both()})
    yield f"{case.name}, export and episodes", differences(found["old"], found["new"])


def photographs(sides: Sides) -> Iterator[tuple[str, list[str]]]:
    """All cases in lock-step; one plain serial run; exports of some."""
    for case in CASES:
        yield from photograph(sides, case, "serial lock-step")
        yield from photograph(sides, case, "fleet of 2")
        if case.name in ("cartpole", "pixels", "gru", "masks", "normalised"):
            yield from photograph_exports(sides, case)
    yield from photograph(sides, CARTPOLE, "serial")
