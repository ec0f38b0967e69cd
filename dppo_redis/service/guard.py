"""Runs a command in a child process; the parent, called the guard, runs none of the user's code.

The user's environments can hold the interpreter's lock in a native call, crash, leave simulators and threads
behind, and take over signals. Such a command may be unable to end itself. So the guard has these duties:

* It passes signals on to the command, and kills a command that does not react to them.
* It stops the command when the process that started it has ended.
* It kills the command when a call of the user's code takes too long and the watchdog cannot end it.
* It ends the processes that the command left behind, and reaps orphans as process 1 must.
"""

import atexit
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from dppo_redis.errors import ExitStatus
from dppo_redis.service import user_code
from dppo_redis.service.descendants import adopt_orphans, end_descendants, reap
from dppo_redis.service.shutdown import (
    OWNER_PID_VARIABLE,
    PARENT_PID_VARIABLE,
    die_with_parent,
    kill_with_parent,
)

STOP_GRACE_S = 3.0  # after a signal, for a call of the user's code; the watchdog acts earlier
_LATE_S = 2.0  # over the limit of a call; the watchdog acts earlier
_END_S = 3.0  # for the interpreter to end
_PERIOD_S = 0.25
_NATURAL_S, _ORPHAN_GRACE_S = 0.3, 1.0
_SIGNALLED = 128  # a shell adds this to the number of a signal
_DUMP = signal.SIGUSR2
_KERNEL = 0x80  # si_code of a signal from the terminal, which the child gets, too
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def run_guarded(main: Callable[[], int]) -> int:
    """Run `main` in a child; return the command's exit status. Only the guard returns from this call."""
    watched = {number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN}
    watched |= {signal.SIGTERM, signal.SIGINT}
    before = set(signal.pthread_sigmask(signal.SIG_BLOCK, {*watched, signal.SIGCHLD}))
    owner = os.environ.pop(OWNER_PID_VARIABLE, None)
    guard, child = os.getpid(), os.fork()
    if not child:
        _run_as_child(main, guard, before)
    adopt_orphans()
    if PARENT_PID_VARIABLE in os.environ:
        die_with_parent()
    return _Guard(child, watched, None if owner is None else int(owner)).watch()


def _run_as_child(main: Callable[[], int], guard: int, before: set[signal.Signals | int]) -> NoReturn:
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        kill_with_parent(guard)
        os.environ.pop(PARENT_PID_VARIABLE, None)  # names the guard's parent, not this child's
        with suppress(OSError, ValueError, RuntimeError):  # no standard error
            faulthandler.register(_DUMP, all_threads=True, chain=False)
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 the last frame of this process
        traceback.print_exc()
    finally:
        _end_process(status)


def _end_process(status: int) -> NoReturn:
    """End this process as the interpreter does, but do not wait for threads of the user's code."""
    user_code.announce_end(status)
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


class _Guard:
    """The child process, and the signals and limits that the guard has sent to it."""

    def __init__(self, child: int, watched: set[signal.Signals], owner: int | None = None) -> None:
        """The command is stopped when the parent `owner` ends."""
        self._child = child
        self._watched = watched
        self._owner = owner
        self._stop: signal.Signals | None = None
        self._stopped_at = 0.0
        self._done_at: float | None = None

    def watch(self) -> int:
        """Wait until the child has ended; return its exit status."""
        while True:
            self._take_signal()
            self._check_owner()
            status = reap().get(self._child)
            if status is None:
                status = self._kill_if_overdue()
            if status is not None:
                break
        end_descendants(_NATURAL_S, _ORPHAN_GRACE_S)
        return self._exit_status(status)

    def _take_signal(self) -> None:
        """Wait for a signal for at most _PERIOD_S, and pass it on to the child."""
        info = signal.sigtimedwait({*self._watched, signal.SIGCHLD}, _PERIOD_S)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        number = signal.Signals(info.si_signo)
        if self._stop is None and number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._stop, self._stopped_at = number, time.monotonic()
        if info.si_code != _KERNEL:
            with suppress(OSError):
                os.kill(self._child, number)

    def _check_owner(self) -> None:
        """Stop the child once the owner has ended.

        The kernel's parent-death signal comes too early: when the owner's thread ends that started the guard.
        """
        if self._owner is None or os.getppid() == self._owner or self._stop is not None:
            return
        self._stop, self._stopped_at = signal.SIGTERM, time.monotonic()
        with suppress(OSError):
            os.kill(self._child, signal.SIGTERM)

    def _kill_if_overdue(self) -> int | None:
        """Kill a child that cannot end itself and return its wait status; None if it is in time."""
        now, began, limit_s = time.monotonic(), user_code.began(), user_code.limit_s()
        if (announced := user_code.announced_status()) is not None:
            self._done_at = self._done_at or now
            return self._kill(announced) if now - self._done_at > _END_S else None
        if began is None:
            return None
        if self._stop is not None and now - max(began, self._stopped_at) > STOP_GRACE_S:
            return self._kill(self._stopped_status)
        if limit_s is not None and now - began > limit_s + _LATE_S:
            self._print(f"the environment has not answered for {now - began:.0f} s; it is in:")
            os.kill(self._child, _DUMP)
            time.sleep(_PERIOD_S)
            return self._kill(ExitStatus.ENVIRONMENT_BROKEN)
        return None

    @property
    def _stopped_status(self) -> ExitStatus:
        """The exit status of a command that a signal stopped."""
        return ExitStatus.INTERRUPTED if self._stop == signal.SIGINT else ExitStatus.TERMINATED

    def _kill(self, status: int) -> int:
        """Kill and reap the child; return the wait status of a process that exited with `status`."""
        with suppress(OSError):
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        user_code.announce_end(status)  # in place of the child
        return status << 8

    def _exit_status(self, wait_status: int) -> int:
        """The exit status for the shell.

        If a signal ended the child and the environment did not cause that, the guard ends by the same signal.
        """
        code = os.waitstatus_to_exitcode(wait_status)
        if code >= 0:
            return self._own_status(code)
        number = signal.Signals(-code)
        if self._stop is not None:
            return self._stopped_status
        if user_code.is_inside() and number != signal.SIGKILL:
            self._print(f"{number.name} inside the environment ended this command")
            return ExitStatus.ENVIRONMENT_BROKEN
        self._print(f"{number.name} ended this command")
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        return _SIGNALLED + number

    def _own_status(self, code: int) -> int:
        """The exit status of a child that exited. Our code announces it first; the user's code does not."""
        if (announced := user_code.announced_status()) is not None:
            return announced
        if user_code.is_inside() or code == ExitStatus.DONE:
            self._print(f"the environment ended this command, with exit status {code}")
            return ExitStatus.ENVIRONMENT_BROKEN
        return code

    def _print(self, text: str) -> None:
        with suppress(OSError):
            os.write(2, f"dppo-redis: {text}\n".encode())
