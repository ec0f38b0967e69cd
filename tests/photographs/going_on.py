"""Each side resumes the checkpoints of the other side; ten updates later both are bit-equal."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.photographs.comparing import TIMED, UNREPEATABLE, differences
from tests.photographs.configurations import LOCK_STEP, RICH
from tests.photographs.lock_step import loaded
from tests.photographs.sides import Side, Sides, at_once

_FIRST, _ALL = 10, 20


def _budget(updates: int) -> tuple[str, ...]:
    return RICH.arguments(updates)[-2:]


def _begin(side: Side, name: str, updates: int) -> Path:
    """Train a fleet of one side for this many updates."""
    side.run("train", *RICH.arguments(updates), *LOCK_STEP, "--run", "rich", "--run-dir", name)
    return side.place / name


def _resume_run(side: Side, begun: Path) -> Path:
    """Resume the run of one side, and train it to its end."""
    directory = side.place / f"of-{begun.parent.name}"
    shutil.copytree(begun, directory)
    side.run("train", "--resume", "--run-dir", str(directory), *_budget(_ALL))
    return directory


def photographs(sides: Sides) -> Iterator[tuple[str, list[str]]]:
    """Each side resumes the runs of both sides. All four results equal the result of a run without a
    break."""
    begun = at_once({side.name: partial(_begin, side, "begun", _FIRST) for side in sides.both()})
    jobs = {
        f"{first.name} then {second.name}": partial(_resume_run, second, begun[first.name])
        for first in sides.both()
        for second in sides.both()
    }
    ended = at_once({**jobs, "old without a break": partial(_begin, sides.old, "whole", _ALL)})
    reference = loaded(ended.pop("old then old"))
    whole = loaded(ended.pop("old without a break"))
    for name, directory in ended.items():
        yield f"resumed, {name}", differences(reference, loaded(directory), TIMED | UNREPEATABLE)
    # A resumed run publishes once more, under a second lease, and its server starts empty.
    resumed = frozenset(("version", "epoch", "lineage", "ledger"))
    yield "resumed, as without a break", differences(whole, reference, TIMED | UNREPEATABLE | resumed)
