"""A private directory that the processes of one run share on one host. Its locks end with their processes.

Each member holds a shared lock on the file `members`. The last member that leaves removes the directory. A
killed process loses its locks; the next process that joins any run here removes what the dead have left.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_MEMBERS = "members"
_TRIES = 100
_PAUSE_S = 0.01
_NAME_DIGITS = 32
_HEX = frozenset("0123456789abcdef")
_FREE_TIMES = 4  # so many times the size of a publication have to be free


def parents() -> Iterator[Path]:
    """Private directories of this user for such directories: in memory, then in the file system.

    They are made with mode 0700 if they are missing. A directory of another user, one that others may enter,
    and a link are left out.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = ("/dev/shm", *([runtime] if os.path.isabs(runtime) else []), tempfile.gettempdir())
    for place in places:
        path = Path(place) / f"dppo-{os.geteuid()}"
        with suppress(OSError):
            path.mkdir(mode=0o700)
        if is_private(path):
            yield path


def is_private(path: Path) -> bool:
    """Whether this is a directory of this user, no link, which others can neither read nor write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def has_room(path: Path, size: int) -> bool:
    """Whether a few publications of this size fit; a container often has little memory for files."""
    free = os.statvfs(path)
    return free.f_bavail * free.f_frsize >= _FREE_TIMES * size


class HostDirectory:
    """The directory of one run, as long as this process is a member."""

    def __init__(self, path: Path, members: int) -> None:
        """`members`: descriptor of the locked file; use `join`."""
        self.path = path
        self._members = members

    @staticmethod
    def join(parent: Path, name: str) -> "HostDirectory":
        """Become a member, after a look at what dead processes have left in `parent`.

        Raises:
            OSError: the directory cannot be used.
        """
        path = parent / sha256(name.encode()).hexdigest()[:_NAME_DIGITS]
        sweep(parent)
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the last member has just removed the directory
                parent.mkdir(mode=0o700, exist_ok=True)
                path.mkdir(mode=0o700, exist_ok=True)
                if not is_private(parent) or not is_private(path):
                    raise PermissionError(f"{path} is not a private directory of this user")
                members = _open(path / _MEMBERS)
                if _lock(members, fcntl.LOCK_SH) and _is_open_at(members, path / _MEMBERS):
                    return HostDirectory(path, members)
                os.close(members)
            time.sleep(_PAUSE_S)
        raise OSError(f"{path} is being removed")

    def leave(self) -> None:
        """End the membership; the last member removes the directory."""
        os.close(self._members)
        with suppress(OSError):
            _remove_if_unused(self.path)
        with suppress(OSError):  # another run has its directory there
            self.path.parent.rmdir()

    def open_lock(self, name: str) -> int:
        """A descriptor for `take`, which the caller closes."""
        return _open(self.path / name)


def take(lock: int) -> bool:
    """Lock a file until its descriptor is closed; False if another process has it."""
    return _lock(lock, fcntl.LOCK_EX)


def sweep(parent: Path) -> None:
    """Remove the directories in `parent` that have no living member."""
    with suppress(OSError):
        for path in parent.iterdir():
            if len(path.name) == _NAME_DIGITS and _HEX.issuperset(path.name) and is_private(path):
                with suppress(OSError):
                    _remove_if_unused(path)


def _remove_if_unused(path: Path) -> None:
    try:
        members = os.open(path / _MEMBERS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        path.rmdir()  # its process died before it was a member
        return
    try:
        if take(members) and _is_open_at(members, path / _MEMBERS):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(members)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_open_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
