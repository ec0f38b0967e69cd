"""The order of test files on several workers: those that compute alternate with those that mostly wait.

Fleets of the end-to-end tests compute; integration tests wait for leases, timeouts and servers. Side by side
they fill each other's gaps. The unit tests, whose files are short, come last: all workers end together.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest

_WAITING, _LAST = "integration", "unit"


def in_turn(files: Sequence[Path], root: Path) -> list[Path]:
    """The files in the order in which workers take them; within a kind it stays as it is."""
    kinds = {file: file.relative_to(root).parts[0] for file in files}
    last = [file for file in files if kinds[file] == _LAST]
    waiting = [file for file in files if kinds[file] == _WAITING]
    computing = [file for file in files if kinds[file] not in (_WAITING, _LAST)]
    pairs = zip_longest(computing, waiting)
    return [file for pair in pairs for file in pair if file is not None] + last


def sort_items(items: list[pytest.Item], root: Path) -> None:
    """Sort tests by their files, in place; those of a file stay together and in order."""
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    items[:] = [item for file in in_turn([*by_file], root) for item in by_file[file]]
