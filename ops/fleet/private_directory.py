"""Creates the private directory for a fleet's sockets, and restores its files while the fleet runs.

Systems clean up temporary directories by the age of their files, and a run may last for weeks. So the
directory is outside /tmp if possible, its files are touched each hour, and removed sockets are restored.
"""

import logging
import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ops.fleet.supervisor import Fleet, FleetError

_LONGEST_PARENT = 60  # the path of a unix socket may have about 100 characters
_CLEANED_DIRECTORIES = ("/tmp", "/var/tmp")
_CHECK_PERIOD_S = 1.0
_TOUCH_PERIOD_S = 3600.0
_RESTORE_S = 10.0  # time for a service to create its socket again
_log = logging.getLogger("dppo")


def make_private_directory(run_dir: Path) -> Path:
    """Create a directory, mode 0700, in the first of these parents that can hold a socket: TMPDIR, the user's
    runtime directory, the run directory, the system's temporary directory.
    """
    temporary = tempfile.gettempdir()
    last = Path("/tmp" if len(temporary) > _LONGEST_PARENT else temporary)
    for parent in (_chosen_directory(), _runtime_directory(), run_dir):
        if parent is not None and len(os.fsencode(parent)) <= _LONGEST_PARENT:
            with suppress(OSError):
                directory = Path(tempfile.mkdtemp(prefix="dppo-", dir=parent))
                if _can_hold_sockets(directory):
                    return directory
                shutil.rmtree(directory, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="dppo-", dir=last))


def _chosen_directory() -> Path | None:
    """TMPDIR, unless it is one of the directories that systems clean up."""
    chosen = os.environ.get("TMPDIR", "")
    return (
        Path(chosen).absolute() if chosen and os.path.realpath(chosen) not in _CLEANED_DIRECTORIES else None
    )


def _runtime_directory() -> Path | None:
    """XDG_RUNTIME_DIR if this user alone owns and reads it, else None. `su` keeps another user's variable."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    try:
        found = path.stat()
    except OSError:
        return None
    is_ours = path.is_absolute() and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return path if is_ours and not found.st_mode & 0o077 else None


def _can_hold_sockets(directory: Path) -> bool:
    """Whether a unix socket can be bound in `directory`. Some network file systems refuse it."""
    path = directory / "try.sock"
    with socket.socket(socket.AF_UNIX) as tried:
        try:
            tried.bind(str(path))
        except OSError:
            return False
    path.unlink()
    return True


class SocketUpkeep:
    """Touches the sockets of a running fleet and restores removed ones. `Watch` calls it repeatedly."""

    def __init__(self, fleet: Fleet, broker_socket: Path | None) -> None:
        self._fleet = fleet
        self._directory = fleet.plan.private_dir
        self._broker_socket = broker_socket
        self._next_check = 0.0  # by the monotonic clock, like `_next_touch`
        self._next_touch = time.monotonic() + _TOUCH_PERIOD_S

    def __call__(self) -> None:
        """Check the sockets, at most once a second."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_PERIOD_S
        if now >= self._next_touch:
            self._next_touch = now + _TOUCH_PERIOD_S
            self._touch_files()
        if self._restore_sockets():
            self._next_check = now + _RESTORE_S

    def _touch_files(self) -> None:
        for path in (self._directory, *self._directory.glob("*")):
            with suppress(OSError):
                os.utime(path)

    def _restore_sockets(self) -> bool:
        """Restore removed sockets; returns whether one was missing."""
        control, broker = self._fleet.plan.control_socket, self._broker_socket
        if control.exists() and (broker is None or broker.exists()):
            return False
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if not control.exists():
            _log.warning("%s was removed: restarting all services", control)
            self._fleet.restart_all()
        elif broker is not None:
            _log.warning("%s was removed: restarting the embedded server", broker)
            with suppress(FleetError):
                self._fleet.restart("broker")
        return True
