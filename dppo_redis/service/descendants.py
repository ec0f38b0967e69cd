"""Finds, reaps and ends the descendants of a process, including the orphans that it adopted. Linux only."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


def adopt_orphans(adopting: bool = True) -> None:
    """Become the parent of descendants whose own parent ends (prctl(2), PR_SET_CHILD_SUBREAPER), or cease."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopting))


def descendants(pid: int | None = None) -> set[int]:
    """Process ids of the living descendants of `pid` (default: this process)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found, waiting = set[int](), [os.getpid() if pid is None else pid]
    while waiting:
        new = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(new)
        waiting += new
    return found


def reap() -> dict[int, int]:
    """Reap the children that have ended; returns their wait statuses by process id."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (report := os.waitpid(-1, os.WNOHANG))[0]:
            ended[report[0]] = report[1]
    return ended


def end_descendants(natural_s: float, grace_s: float) -> None:
    """End and reap all descendants: wait, send SIGTERM, wait, send SIGKILL.

    Args:
        natural_s: seconds in which they may end by themselves.
        grace_s: seconds in which they may end after SIGTERM.
    """
    for number, seconds in ((None, natural_s), (signal.SIGTERM, grace_s), (signal.SIGKILL, 1.0)):
        left = descendants()
        if number is not None:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            reap()
            left = descendants()
            if left:
                time.sleep(_POLL_S)
        if not left:
            break
    reap()
