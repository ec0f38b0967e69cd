"""Ends a process in which the user's code ran, together with all processes that this code started.

The user's code can leave threads that sleep for a day, exit handlers, and simulators that a constructor
started. None of these may delay the end of the process or outlive it. When the process starts, it becomes
the parent of orphans below it. When it ends, it ends all its descendants, flushes its streams and calls
`os._exit`. Without /proc it only flushes and exits.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from multiprocessing import popen_fork, util
from pathlib import Path
from typing import NoReturn

from dppo_redis.service import user_code
from dppo_redis.service.descendants import descendants
from dppo_redis.service.service_deaths import note_own_end

CLOSE_LIMIT_S = 2.0  # for closing environments
POLITE_S = 0.5  # from SIGTERM to SIGKILL
_EXIT_LIMIT_S = 3.0  # for ending the processes that are left, and for flushing
_KILL_ROUNDS = 25
_SLICE_S = 0.02
_STRAYS_KEPT = 20  # zombies; up to this number none is reaped
# The tracker ends by itself after the processes that use it. It frees their semaphores first.
_TRACKER = b"multiprocessing.resource_tracker"
_log = logging.getLogger("dppo")


def end_simulators(polite_s: float = POLITE_S) -> int:
    """End every descendant of this process (SIGTERM, a short wait, SIGKILL); return how many there were.

    This function reaps none of them, because the user's code may still ask for their exit status.
    """
    return end_all(_ours_to_end, polite_s)


def end_all(find: Callable[[], Collection[int]], polite_s: float = POLITE_S) -> int:
    """End the processes that `find` returns, in this call and in repeated ones; return the first count."""
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
    """End all descendants, flush and exit, without waiting for threads and exit handlers."""
    user_code.announce_end(status)
    threading.Thread(target=_leave_later, args=(status,), daemon=True).start()
    # A native call of another thread may keep all Python code from running. This timer needs no Python code.
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(_EXIT_LIMIT_S + 1.0, exit=True, file=2)
    with contextlib.suppress(Exception):
        end_simulators()
    with contextlib.suppress(Exception):
        _remove_sockets()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        logging.shutdown()
    if not status:
        note_own_end()
    os._exit(status)


def _remove_sockets() -> None:
    """Remove the directory of multiprocessing's sockets, as its exit handler does; a parent's stays."""
    handlers: dict[object, util.Finalize[object]] = vars(util)["_finalizer_registry"]
    remove = vars(util)["_remove_temp_dir"]
    for handler in list(handlers.values()):
        if vars(handler)["_callback"] is remove:
            handler()


def _leave_later(status: int) -> None:
    time.sleep(_EXIT_LIMIT_S)
    if not status:
        note_own_end()
    os._exit(status)


@contextlib.contextmanager
def closing_within(limit_s: float = CLOSE_LIMIT_S, status: int = 0) -> Iterator[None]:
    """Limit the time for closing environments: after `limit_s` seconds the process ends with `status`.

    If an error is being handled, its message is logged and its exit status replaces `status`.
    """
    error = sys.exc_info()[1]
    done = threading.Event()

    def enforce() -> None:
        if done.wait(limit_s):
            return
        if error is not None and str(error):
            _log.error("%s", error)
        _log.warning("closing the environments took more than %g s: ending without closing them", limit_s)
        end_process(getattr(error, "exit_status", status))

    threading.Thread(target=enforce, name="closing", daemon=True).start()
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(limit_s + _EXIT_LIMIT_S, exit=True, file=2)
    try:
        yield
    finally:
        done.set()
        faulthandler.cancel_dump_traceback_later()


def reap_strays(ended_before: frozenset[int]) -> frozenset[int]:
    """Reap adopted processes that had ended before the last call too; returns the zombies of this call.

    A few zombies are left alone, so that a `Popen` in this process can still read its child's status.
    """
    zombies = _zombies()
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


def _zombies() -> frozenset[int]:
    """Children of this process that have ended and were not reaped."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state in "ZX" and int(parent) == os.getpid():
                found.add(int(entry.parent.name))
    return frozenset(found)


def _command_line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""
