"""Runs the product as a user would, in a temporary directory, and returns its JSON objects."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dppo_redis.protocol.reports import RunSummary
from ops.bench.processes import output_of

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "ops" / "bench"


def run(arguments: Sequence[str], directory: Path | None = None) -> RunSummary:
    """Run `dppo-redis ARGUMENTS --json`; its artefacts stay only where `directory` is given."""
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as temporary:
        return summary_of(call([*arguments, "--run-dir", str(directory or Path(temporary) / "run")]))


def summary_of(printed: dict[str, Any]) -> RunSummary:
    """From the object that `train` and `serial` print with --json."""
    return TypeAdapter(RunSummary).validate_python(printed)


def call(arguments: Sequence[str]) -> dict[str, Any]:
    """Run `dppo-redis ARGUMENTS --json` and return the object it prints.

    Raises:
        ProgramFailedError: it ended with another status than 0.
    """
    printed = output_of([sys.executable, "-m", "ops", *arguments, "--json"], REPOSITORY)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def name_of(actors: int | None) -> str:
    """How a configuration is called in the tables."""
    return "serial" if actors is None else f"{actors} actors"


def command_of(actors: int | None, env_id: str) -> list[str]:
    """The command line of a configuration, defaults otherwise."""
    return ["serial", env_id] if actors is None else ["train", env_id, "--actors", str(actors)]
