"""How a process ends in which code of the user's ran: nothing of it may hold the process, or outlive it.

A thread that sleeps for a day, an exit handler, a simulator that was started in a constructor. A process
takes over orphans when it starts; when it ends it ends all that is below it, flushes, and leaves at once.
Where there is no /proc only the last two are done.
"""

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import popen_fork
from pathlib import Path
from typing import NoReturn

CLOSE_LIMIT_S = 2.0  # for closing environments
POLITE_S = 0.5  # from SIGTERM to SIGKILL
_LAST_WORDS_S = 3.0  # for ending what is left, and for flushing
_KILL_ROUNDS = 25
_SLICE_S = 0.02
_STRAYS_KEPT = 20  # zombies that are not worth a look
_PR_SET_CHILD_SUBREAPER = 36
# It ends by itself with those that use it, and frees their semaphores first.
_TRACKER = b"multiprocessing.resource_tracker"
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class Seen:
    """A process at one moment."""

    pid: int
    parent: int
    state: str  # Z: ended, and its parent has not asked how

    @property
    def is_zombie(self) -> bool:
        return self.state in ("Z", "X")


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends, so that it can be found."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of: int | None = None, besides: Iterable[int] = ()) -> list[int]:
    """Processes that live below one, by default this one, less those of `besides` and what is below them."""
    children = _by_parent()
    left_out = set(besides)
    found: list[int] = []
    queue = [os.getpid() if of is None else of]
    while queue:
        for process in children.get(queue.pop(), ()):
            if process.pid in left_out:
                continue
            queue.append(process.pid)
            if not process.is_zombie:
                found.append(process.pid)
    return found


def end_descendants(polite_s: float = POLITE_S) -> int:
    """End every process below this one: SIGTERM, a short wait, SIGKILL. How many there were."""
    return end_all(_ours_to_end, polite_s)


def end_all(find: Callable[[], list[int]], polite_s: float = POLITE_S) -> int:
    """End the processes that `find` finds, then and later. How many there were at first."""
    first = find()
    _send(first, signal.SIGTERM)
    deadline = time.monotonic() + polite_s
    left = first
    while left and time.monotonic() < deadline:
        time.sleep(_SLICE_S)
        left = find()
    for _ in range(_KILL_ROUNDS):
        if not left:
            break
        _send(left, signal.SIGKILL)
        time.sleep(_SLICE_S)
        left = find()
    return len(first)


def end_process(status: int) -> NoReturn:
    """End all that is below this process, flush, and leave, whatever threads and exit handlers there are."""
    threading.Thread(target=_leave_later, args=(status,), daemon=True).start()
    # Should a native call of another thread let no Python run: that timer needs none.
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(_LAST_WORDS_S + 1.0, exit=True, file=2)
    with contextlib.suppress(Exception):
        end_descendants()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        logging.shutdown()
    os._exit(status)


def _leave_later(status: int) -> None:
    time.sleep(_LAST_WORDS_S)
    os._exit(status)


@contextlib.contextmanager
def closing_within(limit_s: float = CLOSE_LIMIT_S, status: int = 0) -> Iterator[None]:
    """Around the closing of environments: where it takes longer the process ends, with `status`.

    The status, and the message, of an error that is on its way come first.
    """
    error = sys.exc_info()[1]
    done = threading.Event()

    def enforce() -> None:
        if done.wait(limit_s):
            return
        if error is not None and str(error):
            _log.error("%s", error)
        _log.warning("closing the environments took more than %g s: ending without it", limit_s)
        end_process(getattr(error, "exit_status", status))

    threading.Thread(target=enforce, name="closing", daemon=True).start()
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(limit_s + _LAST_WORDS_S, exit=True, file=2)
    try:
        yield
    finally:
        done.set()
        faulthandler.cancel_dump_traceback_later()


def reap_strays(ended_before: frozenset[int]) -> frozenset[int]:
    """Take leave of adopted processes that ended by now and before the last look; the zombies of this look.

    Of those that somebody here started as a `Popen` the status is left to read. Nothing is done about a few.
    """
    zombies = frozenset(child.pid for child in _by_parent().get(os.getpid(), ()) if child.is_zombie)
    old = zombies & ended_before
    if len(old) <= _STRAYS_KEPT:
        return zombies
    awaited = {one.pid for one in gc.get_objects() if isinstance(one, subprocess.Popen | popen_fork.Popen)}
    for pid in old - awaited:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
    return zombies


def _ours_to_end() -> list[int]:
    return [pid for pid in descendants() if _TRACKER not in _command_line(pid)]


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _by_parent() -> Mapping[int, list[Seen]]:
    """All processes of this machine by their parent; empty where there is no /proc."""
    children: dict[int, list[Seen]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return children
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path("/proc", name, "stat").read_bytes()
                state, parent = text[text.rindex(b")") + 2 :].split()[:2]  # the name before may hold anything
                seen = Seen(int(name), int(parent), state.decode())
                children.setdefault(seen.parent, []).append(seen)
    return children


def _command_line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""
