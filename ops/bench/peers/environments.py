"""Finds the Python environment of a peer, and runs the peer's program in it."""

import importlib.util
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ops.bench.processes import output_of
from ops.bench.runs import BENCH, REPOSITORY

ENVIRONMENTS = Path(".peers")  # in the working directory
_PROGRAMS = BENCH / "peers" / "programs"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Outcome:
    """What a peer's program says about its training; `programs/__init__.py` explains the fields."""

    steps: int
    seconds: float
    steps_per_s: float
    score: float  # mean of the last 100 returns
    target_s: float | None
    target_steps: int | None
    staleness: float | None = None  # where the program knows it


@dataclass(frozen=True)
class Peer:
    """A peer: its name (of environment and requirements file), its program, and the library it imports."""

    name: str
    program: str
    library: str

    @property
    def requirements(self) -> Path:
        """Its libraries with their exact versions."""
        return BENCH / "peers" / f"{self.name}.txt"

    def python(self) -> Path | None:
        """The interpreter of its own environment, else this one if it has the library, else None."""
        own = (ENVIRONMENTS / self.name / "bin" / "python").absolute()
        if own.exists():
            return own
        return Path(sys.executable) if importlib.util.find_spec(self.library) else None

    def how_to_install(self) -> str:
        """The command that makes its environment."""
        place, requirements = ENVIRONMENTS / self.name, self.requirements
        if requirements.is_relative_to(Path.cwd()):
            requirements = requirements.relative_to(Path.cwd())
        return f"python3 -m venv {place} && {place}/bin/pip install -r {requirements}"

    def play(self, variant: str, steps: int, target: float | None, seed: int) -> Outcome:
        """Train once, in a process of its own.

        Raises:
            ProgramFailedError: the program failed, or the peer is not installed.
        """
        asked = {"variant": variant, "steps": steps, "target": target, "seed": seed}
        with tempfile.TemporaryDirectory(prefix="dppo-bench-", ignore_cleanup_errors=True) as directory:
            command = [str(self.python()), str(_PROGRAMS / self.program)]
            command.append(json.dumps({**asked, "directory": directory}))
            return outcome_of(output_of(command, REPOSITORY, _ONE_THREAD))


def outcome_of(printed: str) -> Outcome:
    """From the last line that a program printed."""
    values: dict[str, Any] = json.loads(printed.splitlines()[-1])
    values["score"] = values.pop("return")
    return TypeAdapter(Outcome).validate_python(values)


STABLE_BASELINES3 = Peer("stable-baselines3", "on_stable_baselines3.py", "stable_baselines3")
RLLIB = Peer("rllib", "on_rllib.py", "ray")
SAMPLE_FACTORY = Peer("sample-factory", "on_sample_factory.py", "sample_factory")
RAY = Peer("rllib", "on_ray.py", "ray")
