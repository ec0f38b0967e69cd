"""Runs the `train` command in a child process, which ends when the caller's program ends.

The command has its own session and its own standard streams, so it does not affect the caller's signals,
terminal and output. Its output goes to unnamed temporary files, which the system removes with the processes.
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
from ops.library.keyword_messages import with_keywords

_PACKAGES = Path(__file__).resolve().parents[2]
_INSTALLED = ("site-packages", "dist-packages")
STANDARD_INPUT = Path("/dev/stdin")  # a process that opens it reads from the start
_PREFIX = "dppo-redis: "  # of the line with the error of a command
_TAIL_BYTES = 65_536
_LAST_LINES = 10
_REFUSALS: dict[int, type[DppoError]] = {
    ExitStatus.CONFIGURATION: ConfigurationError,
    ExitStatus.ENVIRONMENT_BROKEN: EnvironmentBrokenError,
    ExitStatus.UNAVAILABLE: UnavailableError,
}


class Command:
    """One `dppo-redis` command that this process has started, and its output."""

    def __init__(self, words: Sequence[str], redis: str | None, standard_input_text: str) -> None:
        """Start the command. It can read `standard_input_text` from STANDARD_INPUT any number of times.

        The Redis URL may hold a password, so the command gets it in an environment variable.
        """
        self._out, self._errors = _unnamed_file(), _unnamed_file()
        standard_input = _unnamed_file()
        standard_input.write(standard_input_text.encode())
        standard_input.flush()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops", *words],
            env=_environment(redis),
            stdin=standard_input,
            stdout=self._out,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in the terminal or notebook reaches only the caller
        )
        standard_input.close()

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the command runs."""
        return self._process.poll()

    @cached_property
    def _output(self) -> tuple[str, str]:
        """The ends of standard output and standard error. Call it only after the command has ended."""
        with self._out, self._errors:
            return _tail(self._out), _tail(self._errors)

    def terminate(self) -> None:
        """Ask the command to stop its fleet in order."""
        if self.exit_status is None:
            self._process.terminate()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the command's end, at most `timeout_s`; returns whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return bool(self._output)  # reads the output now, and closes its files

    def refusal(self) -> DppoError:
        """The error that ended the command before the run began; its message names keywords, not flags."""
        reason = self._output[1].rpartition(f"\n{_PREFIX}")[2].removeprefix(_PREFIX).strip()
        kind = _REFUSALS.get(self._process.returncode, RunFailedError)
        return kind(
            with_keywords(reason)
            or f"the command ended with status {self._process.returncode} without a message"
        )

    def summary(self) -> RunSummary | None:
        """The summary that the command printed at its end; None if it printed none."""
        lines = self._output[0].splitlines()
        with suppress(ValueError):
            return from_json(RunSummary, lines[-1]) if lines else None
        return None

    def last_lines(self) -> str:
        """The last lines of standard error."""
        return "\n".join(self._output[1].strip().splitlines()[-_LAST_LINES:])


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _tail(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - _TAIL_BYTES)
    return os.pread(file.fileno(), size - start, start).decode(errors="replace")


def _environment(redis: str | None) -> dict[str, str]:
    """The caller's environment variables, with a module path that finds the caller's modules."""
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")]), *_own_paths()]
    environment = {name: value for name, value in os.environ.items() if name != PARENT_PID_VARIABLE}
    environment |= {OWNER_PID_VARIABLE: str(os.getpid()), "PYTHONPATH": os.pathsep.join(paths)}
    return environment if redis is None else {**environment, URL_VARIABLE: redis}


def _own_paths() -> list[str]:
    """The directories of the caller's own modules: that of its script, and those added to sys.path."""
    roots = [Path(sys.base_prefix).resolve() / "lib", Path(sys.prefix).resolve() / "lib"]
    found = [Path(path).absolute() for path in sys.path if path and Path(path).is_dir()]
    return [
        str(path)
        for path in found
        if path != _PACKAGES
        and not any(path.resolve().is_relative_to(root) for root in roots)
        and not set(_INSTALLED) & set(path.parts)
    ]
