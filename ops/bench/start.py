"""`dppo-redis bench start`: from the command to the first update, and from the end of training to the prompt.

The measure is a bare process that imports what a learner has to import, torch, and ends: no fleet can have
trained before. It runs in turn with fleets and serial runs of CartPole, with evaluation turned off, so that
nothing but the product's own start and end is measured. The fleet's events say when its start reached which
point, for example when the last of its actors joined.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.reports import RunSummary
from ops.bench.arguments import BenchmarkParser
from ops.bench.processes import stoppable
from ops.bench.runs import run, table
from ops.bench.start_moments import moments, read_events

_MOST_REPEATS = 100
_LEAST_STEPS = 8192
_STEPS_PER_ACTOR = 2048  # the run must not end before its last actor has joined
_COMMON = ("CartPole-v1", "--evaluation.enabled", "false")
BARE = "import torch"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table.

    Raises:
        ConfigurationError: a number is out of range.
    """
    options = _options(argv)
    found: dict[str, list[float]] = {}

    def add(name: str, seconds: float | None) -> None:
        found.setdefault(name, []).append(seconds or 0.0)

    with stoppable():
        for _ in range(options.repeats):
            add(BARE, _seconds_of_bare())
            summary, reached = _train(options.actors)
            for name, seconds in reached.items():
                add(f"train: command to {name}", seconds)
            _add_summary("train", summary, add)
            _add_summary("serial", run(["serial", *_COMMON, "--total-steps", str(_LEAST_STEPS)]), add)
    bare = found[BARE]
    firsts = found["train: command to first update"]
    ratios = [first / own for first, own in zip(firsts, bare, strict=True)]
    if options.json:
        print(json.dumps(_as_json(found, ratios)))
    else:
        rows = [
            [name, f"{median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}"]
            for name, seconds in found.items()
        ]
        print(table(["", "s, median", "lowest to highest"], rows))
        print(f"\nA fleet's first update, by `{BARE}` alone: {median(ratios):.2f}; {cores()} cores")
    return ExitStatus.DONE


def _train(actors: int) -> tuple[RunSummary, dict[str, float]]:
    """Run a fleet; returns its summary, and when its start reached which point."""
    steps = max(_LEAST_STEPS, _STEPS_PER_ACTOR * actors)
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as directory:
        words = ("--actors", str(actors), "--total-steps", str(steps), "--event-log", directory)
        began = time.time()
        summary = run(["train", *_COMMON, *words])
        return summary, moments(read_events(Path(directory)), began)


def _add_summary(kind: str, summary: RunSummary, add: Callable[[str, float | None], None]) -> None:
    add(f"{kind}: command to first update", summary.first_update_s)
    add(f"{kind}: end of training to summary", summary.end_s)
    add(f"{kind}: whole command", summary.wall_s)


def _seconds_of_bare() -> float:
    """Wall-clock time of an interpreter that imports torch and ends."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", BARE], check=True)
    return time.monotonic() - began


def _as_json(found: dict[str, list[float]], ratios: Sequence[float]) -> dict[str, Any]:
    return {
        "ratio": round(median(ratios), 3),
        "samples": {name: [round(second, 3) for second in seconds] for name, seconds in found.items()},
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "cores": cores(),
        "unit": "s",
    }


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench start", description=__doc__)
    parser.add_argument("--actors", type=int, default=2, help="actors of the fleet")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    options = parser.parse_args(argv)
    if not 1 <= options.repeats <= _MOST_REPEATS:
        raise ConfigurationError(f"repeats: from 1 to {_MOST_REPEATS} (got {options.repeats})")
    if not 1 <= options.actors <= 64:
        raise ConfigurationError(f"actors: from 1 to 64 (got {options.actors})")
    return options


if __name__ == "__main__":
    sys.exit(main())
