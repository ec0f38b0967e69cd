"""Reads the files of a run without the product's modules."""

import csv
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def first_row(run: Path) -> dict[str, str]:
    """The first row of a run's metrics.csv."""
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        return next(csv.DictReader(stream))


def tags(directory: Path) -> list[str]:
    """The names of all curves that TensorBoard shows."""
    found: set[str] = set()
    for file in directory.rglob("*tfevents*"):
        for event in EventFileLoader(str(file)).Load():
            found.update(value.tag for value in event.summary.value)
    return sorted(found)
