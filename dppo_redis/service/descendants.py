"""Processes that a process of ours has started, and those that these have started in turn.

Read from /proc: where there is none, none are found, and what is left to do is killing the group.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PAUSE_S = 0.01


def adopt_orphans(wanted: bool = True) -> bool:
    """Whether descendants whose parent ends become children of this process; returns what it was before."""
    if sys.platform != "linux":
        return False
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int(0)
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
    return bool(before.value)


def children(parent: int) -> set[int]:
    """Its own children, those included that have ended and wait for it to ask."""
    return {pid for pid, (of, _) in _processes().items() if of == parent}


def living_descendants(ancestor: int) -> set[int]:
    """All below it that have not ended, also below one that has."""
    processes = _processes()
    below: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        below.setdefault(parent, []).append(pid)
    found, ahead = set(), [ancestor]
    while ahead:
        for pid in below.get(ahead.pop(), ()):
            ahead.append(pid)
            if processes[pid][1] not in "ZX":
                found.add(pid)
    return found


def kill_descendants(ancestor: int, patience_s: float = 1.0) -> int:
    """Kill all below `ancestor`, which must not start others meanwhile; returns how many there were."""
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while (living := living_descendants(ancestor)) and time.monotonic() < deadline:
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= living
        time.sleep(_PAUSE_S)
    return len(killed)


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and state of every process."""
    found = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in names:
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                found[int(name)] = (int(parent), state.decode())
    return found
