"""Ends our processes: stop signals, parents that have ended, exit statuses.

Signal handlers only set a flag, which loops check. supervisord counts an exit before `startsecs` as a failed
start. This module alone knows that: it delays every exit until the process is old enough.
"""

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dppo_redis.errors import DppoError, ExitStatus
from dppo_redis.service.descendants import adopt_orphans
from dppo_redis.service.ending import end_process

SETTLED_AGE_S = 1.5  # above supervisord's startsecs=1
PARENT_PID_VARIABLE = "DPPO_PARENT_PID"
OWNER_PID_VARIABLE = "DPPO_OWNER_PID"  # set by a program that starts a command for itself
_PR_SET_PDEATHSIG = 1
_SLICE_S = 0.05
_ORPHAN_POLL_S = 0.5


class StopRequest:
    """A flag that SIGTERM, SIGINT and SIGHUP set."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._requested = False

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self) -> None:
        """Request a stop from within this process."""
        self._requested = True

    def install(self) -> "StopRequest":
        """Install the handlers of this process. If `nohup` had SIGHUP ignored, it stays ignored."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
        self._requested = True

    def sleep(self, seconds: float) -> None:
        """Sleep, but return early once a stop is requested."""
        deadline = time.monotonic() + seconds
        while not self._requested and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_S))

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of a command that a signal stopped."""
        if self.signal is None:
            return ExitStatus.DONE
        return ExitStatus.INTERRUPTED if self.signal is signal.SIGINT else ExitStatus.TERMINATED


def die_with_parent() -> None:
    """Have this process get SIGTERM when its parent dies.

    On Linux the kernel sends it, also after an exec. Elsewhere a thread checks the parent. If the parent that
    DPPO_PARENT_PID names has already ended, this function ends the process with status 1.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    else:
        threading.Thread(target=terminate_when_orphaned, args=(os.getppid(),), daemon=True).start()
    expected = os.environ.get(PARENT_PID_VARIABLE)
    if expected is not None and str(os.getppid()) != expected:
        sys.exit(f"{PARENT_PID_VARIABLE} names {expected}, which is not the parent (any more): ending")


def kill_with_parent(parent: int) -> None:
    """Have the kernel kill this process, a fork of `parent`, when `parent` dies; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def terminate_when_orphaned(parent: int) -> None:
    """Wait until `parent` is no longer this process's parent, then send this process SIGTERM."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def is_alive(pid: int) -> bool:
    """Whether this machine has such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process of another user, or no valid process id
        return True
    return True


@cache
def pid_scope() -> str:
    """Identifies where process ids are unique: this boot of this machine, and this namespace of processes.

    Containers may share a host name, and each of them has a process 7.
    """
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{start}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux
        return socket.gethostname()


def run_service(main: Callable[[StopRequest], ExitStatus]) -> NoReturn:
    """Run a service to its end, turn errors into one line and an exit status, and end the process.

    The user's code has run in this process, so the process ends as `ending.py` describes.
    """
    started = time.monotonic()
    with contextlib.suppress(Exception):  # a fault in native code leaves its traceback in the log
        faulthandler.enable(file=2)
    adopt_orphans()
    stop = StopRequest().install()
    if PARENT_PID_VARIABLE in os.environ:
        die_with_parent()
    status = _guarded(main, stop)
    stop.sleep(SETTLED_AGE_S - (time.monotonic() - started))  # even if its run was over before
    end_process(status)


def _guarded(main: Callable[[StopRequest], ExitStatus], stop: StopRequest) -> ExitStatus:
    log = logging.getLogger("dppo")
    try:
        return main(stop)
    except DppoError as error:
        if error.exit_status is ExitStatus.DONE:
            return ExitStatus.DONE
        log.error("%s", error)
        return error.exit_status
    except SystemExit as error:
        if error.code in (0, None):
            raise  # --help
        log.exception("the user's code asked this process to end")
        return ExitStatus.FAILED
    except BaseException:  # the last frame of a service: the traceback goes to the log, once
        log.exception("this is a defect")
        return ExitStatus.FAILED
