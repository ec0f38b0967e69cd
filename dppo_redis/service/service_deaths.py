"""Counts how often a service's processes ended by an error, and says when to stop restarting it.

Only errors of the service itself and faults of native code count. A killed process is restarted at once.
supervisord's process writes the file of a service each time the service ends (`ops/fleet/supervised.py`). The
next process of the service reads it. Services that were started by hand have no such file.
"""

import contextlib
import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dppo_redis.errors import DppoError, ExitStatus
from dppo_redis.service.files import write_atomically

MOST_DEATHS = 10  # in a row
DIRECTORY_VARIABLE = "DPPO_DEATHS"
SERVICE_VARIABLE = "SUPERVISOR_PROCESS_NAME"  # set by supervisord
_FORGIVEN_AFTER_S = 600.0  # each period of this length that a process lives halves the count
_LONGEST_PAUSE_S = 60.0
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_AS_ASKED = (ExitStatus.DONE, ExitStatus.CONFIGURATION, ExitStatus.GAVE_UP)
_LONGEST_REASON = 300


class TooManyDeathsError(DppoError):
    """A service that keeps dying by its own fault."""

    exit_status = ExitStatus.GAVE_UP


@dataclass(frozen=True)
class Deaths:
    """The counts of one service's ended processes, and the end of the last one."""

    in_a_row: int = 0  # by its own fault; halved by each ten minutes of life
    faults: int = 0  # all deaths by its own fault
    killed: int = 0  # deaths by a signal from outside
    last: str = ""  # how the last process ended, and its last message

    def after(self, wait_status: int, lived_s: float, said: str = "") -> "Deaths":
        """These deaths and one more; `wait_status` is as `waitpid` returns it."""
        number = os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else None
        status = None if number is not None else os.WEXITSTATUS(wait_status)
        in_a_row = self.in_a_row >> min(64, int(lived_s // _FORGIVEN_AFTER_S))
        if status in _AS_ASKED:
            return replace(self, in_a_row=in_a_row)
        was_killed = number not in _FAULTS if number is not None else status == ExitStatus.TERMINATED
        if was_killed:
            by = _name_of(number or signal.SIGTERM)
            return replace(self, in_a_row=in_a_row, killed=self.killed + 1, last=f"killed by {by}")
        how = f"status {status}" if number is None else _name_of(number)
        last = f"{how}: {said}" if said else how
        return replace(self, in_a_row=in_a_row + 1, faults=self.faults + 1, last=last[:_LONGEST_REASON])

    @property
    def pause_s(self) -> float:
        """Time that the next process waits before it samples: 0, 1, 2, 4, ... 60 s."""
        if self.in_a_row < 2:
            return 0.0
        return min(_LONGEST_PAUSE_S, math.ldexp(1.0, min(self.in_a_row - 2, 16)))

    def check(self) -> None:
        """Refuse to start again after too many deaths.

        Raises:
            TooManyDeathsError: there were too many deaths in a row.
        """
        if self.in_a_row >= MOST_DEATHS:
            raise TooManyDeathsError(
                f"ended by its own fault {self.in_a_row} times in a row, the last time with {self.last}"
            )


NO_DEATHS = Deaths()


def read_deaths(environment: Mapping[str, str] = os.environ) -> Deaths:
    """The deaths of this process's service; none if it is not supervised."""
    directory, service = environment.get(DIRECTORY_VARIABLE), environment.get(SERVICE_VARIABLE)
    if not directory or not service:
        return NO_DEATHS
    return read_file(file_of(Path(directory), service))


# Read at import: the user's code may clear the variables.
_OWN = (os.environ.get(DIRECTORY_VARIABLE), os.environ.get(SERVICE_VARIABLE))


def note_own_end() -> None:
    """Record that our code ends this process with status 0: the user's `os._exit(0)` looks the same."""
    directory, service = _OWN
    if directory and service:
        with contextlib.suppress(OSError):
            _own_end_of(Path(directory), service).touch()


def was_own_end(directory: Path, service: str) -> bool:
    """Whether the last process of a service recorded its own end; called once after each end."""
    try:
        _own_end_of(directory, service).unlink()
    except FileNotFoundError:
        return False
    return True


def _own_end_of(directory: Path, service: str) -> Path:
    return directory / f"{service}.done"


def is_supervised(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether supervisord restarts this service and counts its deaths."""
    return DIRECTORY_VARIABLE in environment and SERVICE_VARIABLE in environment


def stopped_status(was_signalled: bool = True) -> ExitStatus:
    """The exit status of a stopped service. After a signal it makes supervisord start another process."""
    return ExitStatus.TERMINATED if was_signalled and is_supervised() else ExitStatus.DONE


def file_of(directory: Path, service: str) -> Path:
    """The file that holds the deaths of a service."""
    return directory / f"{service}.deaths"


def read_file(file: Path) -> Deaths:
    """The deaths in a file; no deaths if it is missing or damaged."""
    try:
        return Deaths(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return NO_DEATHS


def write_file(file: Path, deaths: Deaths) -> None:
    """Replace the file's content.

    Raises:
        OSError: the disk refuses.
    """
    write_atomically(file, json.dumps(asdict(deaths)).encode())


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
