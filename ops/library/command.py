"""The `train` command in a process of its own, for the program that asked for it: it ends when that does.

The command has its own session and its own standard streams, so that signals, terminal and output of the
caller are left alone. What it prints is kept in files without a name, which go with the processes.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO

from dppo_redis.errors import (
    ConfigurationError,
    DppoError,
    EnvironmentBrokenError,
    ExitStatus,
    RunFailedError,
    UnavailableError,
)
from dppo_redis.protocol.report_fields import from_json
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.service.shutdown import OWNER_PID_VARIABLE, PARENT_PID_VARIABLE
from dppo_redis.store.credentials import URL_VARIABLE

_PACKAGES = Path(__file__).resolve().parents[2]
_INSTALLED = ("site-packages", "dist-packages")
_PREFIX = "dppo-redis: "  # of the line in which a command says why it ended
_TAIL_BYTES = 65_536
_LINES = 10
_REFUSALS: dict[int, type[DppoError]] = {
    ExitStatus.CONFIGURATION: ConfigurationError,
    ExitStatus.ENVIRONMENT_BROKEN: EnvironmentBrokenError,
    ExitStatus.UNAVAILABLE: UnavailableError,
}


class Command:
    """One `dppo-redis` command that was started by this process, and what it said."""

    def __init__(self, words: Sequence[str], redis: str | None) -> None:
        """Start it. A Redis URL may hold a password, so it travels in the environment."""
        self._out, self._errors = _unnamed_file(), _unnamed_file()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops", *words],
            env=_environment(redis),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in the terminal or notebook is for the caller
        )

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @cached_property
    def _output(self) -> tuple[str, str]:
        """The ends of standard output and standard error; only of a command that has ended."""
        with self._out, self._errors:
            return _tail(self._out), _tail(self._errors)

    def terminate(self) -> None:
        """Ask it to stop everything in order."""
        if self.exit_status is None:
            self._process.terminate()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, now or within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return bool(self._output)  # read now: the files are closed with it

    def refusal(self) -> DppoError:
        """Why it ended before anything had begun, in its own words."""
        words = self._output[1].rpartition(f"\n{_PREFIX}")[2].removeprefix(_PREFIX).strip()
        kind = _REFUSALS.get(self._process.returncode, RunFailedError)
        return kind(words or f"the command ended with status {self._process.returncode} and said nothing")

    def summary(self) -> RunSummary | None:
        """What it printed at its end; None where it could not."""
        lines = self._output[0].splitlines()
        with suppress(ValueError):
            return from_json(RunSummary, lines[-1]) if lines else None
        return None

    def last_lines(self) -> str:
        """The end of what it said."""
        return "\n".join(self._output[1].strip().splitlines()[-_LINES:])


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _tail(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - _TAIL_BYTES)
    return os.pread(file.fileno(), size - start, start).decode(errors="replace")


def _environment(redis: str | None) -> dict[str, str]:
    """That of the caller's process; it finds modules where the caller finds them."""
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")]), *_own_paths()]
    environment = {name: value for name, value in os.environ.items() if name != PARENT_PID_VARIABLE}
    environment |= {OWNER_PID_VARIABLE: str(os.getpid()), "PYTHONPATH": os.pathsep.join(paths)}
    return environment if redis is None else {**environment, URL_VARIABLE: redis}


def _own_paths() -> list[str]:
    """Directories in which the caller looks for modules: its script's, and those that it has added."""
    roots = [Path(sys.base_prefix).resolve() / "lib", Path(sys.prefix).resolve() / "lib"]
    found = [Path(path).absolute() for path in sys.path if path and Path(path).is_dir()]
    return [
        str(path)
        for path in found
        if path != _PACKAGES
        and not any(path.resolve().is_relative_to(root) for root in roots)
        and not set(_INSTALLED) & set(path.parts)
    ]
