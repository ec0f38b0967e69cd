"""Locks a run's directory, so that only one command at a time trains in it.

flock shows whether the lock is held; the text of the lock file names the holder. If the holder's command
lives, `take` raises at once. If only its fleet lives, `take` waits for the fleet's end. On a file system
without locks, `take` relies on the text.
"""

import errno
import fcntl
import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from dppo_redis.errors import ConfigurationError, StoppedError
from dppo_redis.service.shutdown import StopRequest, is_alive

_WAIT_S = 30.0
_ENDING_FLEET_WAIT_S = 90.0  # longer than supervisord waits for all its services
_POLL_S = 0.2
_TAKEN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
_log = logging.getLogger("dppo")


class HolderLiveness(Enum):
    """Which processes of a lock's holder live."""

    COMMAND = "the command lives"
    FLEET = "the command has ended, its fleet lives"
    NONE = "command and fleet have ended"
    UNKNOWN = "unknown: it runs on another machine, or belongs to an earlier release"


@dataclass(frozen=True)
class Process:
    """A process of this machine. Its start time distinguishes it from a later process with the same pid."""

    pid: int
    started: str

    @staticmethod
    def of(pid: int) -> "Process":
        return Process(pid, _started(pid))

    @property
    def lives(self) -> bool:
        return is_alive(self.pid) and _started(self.pid) == self.started != _ENDED


@dataclass(frozen=True)
class LockHolder:
    """The last holder of the lock, as the lock file names it."""

    run: str
    host: str
    command: Process
    fleet: Process | None

    def liveness(self) -> HolderLiveness:
        if self.host != socket.gethostname():
            return HolderLiveness.UNKNOWN
        if self.command.lives:
            return HolderLiveness.COMMAND
        return HolderLiveness.FLEET if self.fleet is not None and self.fleet.lives else HolderLiveness.NONE


_ENDED = "ended"  # the start time of a zombie, whose parent has not read its exit status


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty where the system does not show it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return _ENDED if fields[0] in ("Z", "X") else fields[19]


def read_holder(file: Path) -> LockHolder | None:
    """The last holder of the lock; None if there was none, or the file is unreadable."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        fleet = values["fleet"]
        return LockHolder(
            str(values["run"]),
            str(values["host"]),
            Process(**values["command"]),
            None if fleet is None else Process(**fleet),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sign(lock: int, run: str, fleet_pid: int | None = None) -> None:
    """Write the holder into the lock file. On a full disk this logs a warning and writes nothing."""
    fleet = None if fleet_pid is None else Process.of(fleet_pid)
    holder = LockHolder(run, socket.gethostname(), Process.of(os.getpid()), fleet)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(asdict(holder)).encode(), 0)
    except OSError as error:
        _log.warning("cannot write the holder's name into the lock file: %s", error)


def take(file: Path, stop: StopRequest) -> int:
    """Lock `file`, created if missing. The caller keeps the returned file descriptor open.

    Raises:
        ConfigurationError: a living command holds it, or its fleet does not end.
        OSError: it cannot be opened.
        StoppedError: a stop was requested meanwhile.
    """
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _wait(lock, file, stop)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait(lock: int, file: Path, stop: StopRequest) -> None:
    began = time.monotonic()
    has_logged = False
    while True:
        error = _try_to_lock(lock)
        if error is None:
            return
        holder = read_holder(file)
        liveness = HolderLiveness.UNKNOWN if holder is None else holder.liveness()
        is_locked = error.errno in _TAKEN
        if not is_locked and liveness in (HolderLiveness.NONE, HolderLiveness.UNKNOWN):
            _log.warning(
                "%s: this file system has no locks (%s): do not start a second command in this directory",
                file.parent,
                error.strerror,
            )
            return
        longest_s = _ENDING_FLEET_WAIT_S if liveness is HolderLiveness.FLEET else _WAIT_S
        if liveness is HolderLiveness.COMMAND or time.monotonic() - began > longest_s:
            raise _in_use(file.parent, holder)
        if not has_logged:
            has_logged = True
            _log.info(
                "%s is still in use by a fleet whose command has ended: waiting for the fleet's end",
                file.parent,
            )
        stop.sleep(_POLL_S)
        if stop.requested:
            raise StoppedError(f"stopped while waiting for {file.parent}")


def _try_to_lock(lock: int) -> OSError | None:
    """Take the lock without waiting; returns None, or the error if that failed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None


def _in_use(directory: Path, holder: LockHolder | None) -> ConfigurationError:
    who = "" if holder is None else f", process {holder.command.pid} on {holder.host}"
    return ConfigurationError(
        f"{directory} is in use by a living run{who}: stop it, or choose another --run-dir"
    )
