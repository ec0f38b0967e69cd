"""A side: a folder with the product's code, and how to run it. The old one is exported from git.

Every process of a side finds the side's own packages first, and the plugins of both.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[2]
_PLUGINS = Path(__file__).resolve().parent / "plugins"
_AUTOGRAD = _PLUGINS / "autograd"  # a plugin of Python, see its docstring
_PACKAGES = ("dppo_redis", "workers", "learner", "ops")
_LONGEST_S = 600.0


class BrokenSideError(Exception):
    """A side failed, so that nothing can be compared."""


@dataclass(frozen=True)
class Side:
    """Code, and a folder with a short path for other files than runs."""

    name: str
    code: Path
    place: Path
    autograd: bool = False  # for all networks, as in commits that have no other way

    def environment(self) -> dict[str, str]:
        """The environment variables of each process of this side."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DPPO_", "PYTHON"))}
        path = os.pathsep.join(map(str, (self.code, _PLUGINS, *([_AUTOGRAD] if self.autograd else []))))
        return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.place)}

    def start(self, *arguments: str, program: str = "ops") -> "Running":
        """Start `python -m PROGRAM ARGUMENTS` on this side."""
        return Running(self, [sys.executable, "-P", "-m", program, *arguments])

    def run(self, *arguments: str, program: str = "ops") -> str:
        """Run a program to its end; returns its standard output.

        Raises:
            BrokenSideError: it failed.
        """
        with self.start(*arguments, program=program) as running:
            return running.wait()

    def summary(self, *arguments: str) -> dict[str, Any]:
        """Run a command with --json; returns the object that it prints last."""
        return cast(dict[str, Any], json.loads(self.run(*arguments, "--json").splitlines()[-1]))

    def verify(self) -> None:
        """Refuse to compare if the side's packages come from another folder.

        Raises:
            BrokenSideError: naming the package.
        """
        script = f"import {', '.join(_PACKAGES)}; print(*(p.__file__ for p in ({', '.join(_PACKAGES)})))"
        asked = subprocess.run(
            [sys.executable, "-P", "-c", script],
            env=self.environment(),
            cwd=self.place,
            capture_output=True,
            text=True,
            check=True,
        )
        for file in asked.stdout.split():
            if not Path(file).resolve().is_relative_to(self.code.resolve()):
                raise BrokenSideError(f"the {self.name} side would run {file}, not {self.code}")


@dataclass
class Running:
    """A process of a side. The end of its block kills remaining processes."""

    side: Side
    command: list[str]
    output: Path = field(init=False)

    def __post_init__(self) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.side.place, prefix="output-")
        self.output = Path(name)
        with os.fdopen(descriptor, "wb") as stream, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.side.place,
                env=self.side.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=errors,
            )

    @property
    def _errors(self) -> Path:
        return self.output.with_suffix(".err")

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        """SIGTERM ends a fleet cleanly. A process that ignores it is killed, and its fleet ends, too."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait(self) -> str:
        """Wait for its success; returns its output.

        Raises:
            BrokenSideError: it failed, or does not end.
        """
        try:
            status = self.process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            raise BrokenSideError(f"{self.side.name}: no end of {self._output()}") from None
        if status:
            raise BrokenSideError(f"{self.side.name}: status {status} of {self._output()}")
        return self.output.read_text()

    def _output(self) -> str:
        return f"{' '.join(self.command[2:])}\n{self._errors.read_text()[-2000:]}"


@dataclass(frozen=True)
class Sides:
    """Both sides, and the folder in which they work."""

    old: Side
    new: Side
    place: Path

    def both(self) -> tuple[Side, Side]:
        return self.old, self.new


@contextlib.contextmanager
def sides(commit: str) -> Iterator[Sides]:
    """The old commit and this checkout, in a folder that is removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="photo-", dir="/tmp"))  # short: sockets live below it
    try:
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(place / "code", filter="data")
        by_hand = (place / "code/learner/ppo/plain/steps.py").exists()
        if not by_hand:
            print(
                f"{commit} knows autograd alone: so this checkout computes all gradients with it", flush=True
            )
        old = _side("old", place / "code", place)
        new = replace(_side("new", ROOT, place), autograd=not by_hand)
        found = Sides(old, new, place)
        for side in found.both():
            side.verify()
        yield found
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _side(name: str, code: Path, place: Path) -> Side:
    (place / name).mkdir()
    return Side(name, code, place / name)


def at_once(jobs: Mapping[str, Any]) -> dict[str, Any]:
    """Run calls without arguments, two at a time; returns their results by name."""
    with ThreadPoolExecutor(2) as threads:
        futures = {name: threads.submit(job) for name, job in jobs.items()}
        return {name: future.result() for name, future in futures.items()}
