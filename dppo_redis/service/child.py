"""Runs the user's code in a child process, with a time limit, and returns its answer.

The user's code may hang, crash, take over signals, start threads and processes, or change the directory. All
of that ends with the child. The child is forked, so that it imports no module again.
"""

import contextlib
import faulthandler
import logging
import os
import pickle
import secrets
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from dppo_redis.errors import (
    CheckpointError,
    ConfigurationError,
    DppoError,
    EnvironmentBrokenError,
    EnvironmentHangsError,
    StoppedError,
)
from dppo_redis.service import user_code
from dppo_redis.service.descendants import adopt_orphans, descendants, reap
from dppo_redis.service.shutdown import StopRequest, kill_with_parent

T = TypeVar("T")

_MARK = "DPPO_LOOK"
_CLOSING_S = 2.0  # for the child to close its environments, after its answer
_KILLING_S = 1.0
_SLICE_S = 0.05
_FIRST_WORD_S = 10.0
_LENGTH = struct.Struct("!Q")
_KINDS = (CheckpointError, ConfigurationError, EnvironmentBrokenError)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_log = logging.getLogger("dppo")


class ChildTracebackError(Exception):
    """The traceback in the child, as the cause of the error raised here."""


def ask_child(
    subject: str,
    work: Callable[[], AbstractContextManager[T]],
    *,
    limit_s: float,
    knob: str | None = None,
    stop: StopRequest | None = None,
    traces: bool = True,
) -> T:
    """Run `work` in a child and return its answer.

    The child then leaves the context of `work`, which closes its environments, within a short limit. Messages
    name the `subject` of the work, and `knob`, the flag that sets the limit, if there is one. With `traces`
    the child logs where it hangs or crashes.

    Raises:
        EnvironmentHangsError: there is no answer within the limit.
        EnvironmentBrokenError: the child died, or `work` raised an error that is not ours.
        StoppedError: a stop was requested meanwhile.
        DppoError, OSError: as `work` raised it.
    """
    adopt_orphans()  # so that processes which the child leaves behind become children of this process
    mark = f"{_MARK}={secrets.token_hex(8)}"
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.environ[_MARK] = mark.partition("=")[2]  # all processes that the child starts inherit it
        _run_child(parent, work, writer, max(0.1, limit_s - 0.2) if traces else None)
    os.close(writer)
    ended: int | None = None
    try:
        answer, ended = _wait(pid, reader, subject, limit_s, knob, stop or StopRequest())
    finally:
        os.close(reader)
        if ended is None:
            _end(pid)
        _end_strays(pid, mark.encode())
    if answer is None:
        raise EnvironmentBrokenError(
            f"{subject} ended the process that it was in: {_status_text(ended or 0)}"
        )
    return cast(T, _open(answer, subject))


def _wait(
    pid: int, reader: int, subject: str, limit_s: float, knob: str | None, stop: StopRequest
) -> tuple[bytes | None, int | None]:
    """(answer, wait status) of the child: None if it died without an answer; None while it lives."""
    began, next_word_s, received = time.monotonic(), _FIRST_WORD_S, b""
    while True:
        ended = _poll(pid)  # before reading, so that the whole answer of an ended child is read
        while select.select([reader], [], [], 0.0 if ended is not None else _SLICE_S)[0]:
            part = os.read(reader, 2**16)
            received += part
            if _is_whole(received):
                return received[_LENGTH.size :], ended if ended is not None else _await_end(pid, stop)
            if not part:  # the end, or the user's code has closed all files
                time.sleep(_SLICE_S)
                break
        if ended is not None:
            return None, ended
        taken_s = time.monotonic() - began
        if stop.requested:
            raise StoppedError(f"stopped while {subject} had not answered yet")
        if taken_s > limit_s:
            raise EnvironmentHangsError(
                f"{subject} has not answered for {limit_s:g} s"
                + (
                    f", and building it, one reset and one step may take that long: see {knob}"
                    if knob
                    else ""
                )
            )
        if taken_s > next_word_s:
            next_word_s *= 2
            limit = f"the limit is {limit_s:g} s{f', see {knob}' if knob else ''}"
            _log.info("%s has not answered for %.0f s; %s", subject, taken_s, limit)


def _is_whole(received: bytes) -> bool:
    size = _LENGTH.size
    return len(received) >= size and len(received) >= size + _LENGTH.unpack_from(received)[0]


def _poll(pid: int) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # SIGCHLD is ignored, so the kernel has reaped it
        return 0
    return status if found else None


def _await_end(pid: int, stop: StopRequest) -> int | None:
    """Let the child close its environments; None if it takes too long."""
    deadline = time.monotonic() + _CLOSING_S
    while (ended := _poll(pid)) is None and time.monotonic() < deadline and not stop.requested:
        time.sleep(_SLICE_S / 20)
    return ended


def _end(pid: int) -> None:
    """Kill the child and all processes that it started. SIGSTOP comes first, so that it starts no more."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
    below = descendants(pid)
    _kill(lambda: descendants(pid))
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    _reap(below)


def _end_strays(child: int, mark: bytes) -> None:
    """End the processes that the child left behind, which this process has adopted."""

    def find() -> set[int]:
        return {pid for pid in descendants() if _was_started_by(child, mark, pid)}

    if _has_children():
        strays = find()
        _kill(find)
        _reap(strays)


def _has_children() -> bool:
    """Whether this process has children, ended or not.

    This process adopts orphans. So without children it has no descendants either.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(find: Callable[[], set[int]]) -> None:
    """Kill the processes that `find` returns, until it returns none."""
    deadline = time.monotonic() + _KILLING_S
    while (found := find()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_SLICE_S / 20)


def _reap(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def _was_started_by(child: int, mark: bytes, pid: int) -> bool:
    """Whether `child` started `pid`: they share a session, or `mark` is in the environment of `pid`."""
    try:
        return os.getsid(pid) == child or mark in Path("/proc", str(pid), "environ").read_bytes()
    except OSError:  # the process has ended, or belongs to another user
        return False


def _status_text(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _open(answer: bytes, subject: str) -> Any:
    value, error = pickle.loads(answer)  # noqa: S301 written by our own child
    if error is None:
        return value
    kind, arguments, text = error
    if kind is None:
        kind, arguments = EnvironmentBrokenError, (f"{subject} raised {arguments[0]}",)
    raise kind(*arguments) from ChildTracebackError(text)


def _run_child(
    parent: int, work: Callable[[], AbstractContextManager[Any]], writer: int, trace_after_s: float | None
) -> NoReturn:
    """Send the answer, close the environment and exit, even if the user's code left threads running."""
    status = 0
    try:
        os.setsid()
        kill_with_parent(parent)
        user_code.detach()
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        adopt_orphans()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)  # only the command's own output goes to standard output
        faulthandler.disable()
        if trace_after_s is not None:
            faulthandler.enable(2)
            faulthandler.dump_traceback_later(trace_after_s, file=2)
        _answer(work, writer)
    except BaseException:  # noqa: BLE001 while freeing: the answer was sent before
        status = 1
    finally:
        with contextlib.suppress(BaseException):
            if _has_children():
                _kill(descendants)
                reap()
        os._exit(status)


def _answer(work: Callable[[], AbstractContextManager[Any]], writer: int) -> None:
    with contextlib.ExitStack() as freed:
        try:
            message = pickle.dumps((freed.enter_context(work()), None))
        except BaseException as error:  # noqa: BLE001 the user's code may raise anything
            message = pickle.dumps((None, _as_plain(error)))
        faulthandler.cancel_dump_traceback_later()
        left = memoryview(_LENGTH.pack(len(message)) + message)
        while left:
            left = left[os.write(writer, left) :]


def _as_plain(error: BaseException) -> tuple[type[Exception] | None, tuple[Any, ...], str]:
    """(class, arguments, traceback) of an error; the class is None for errors that no command expects."""
    text = "".join(traceback.format_exception(error.__cause__ or error))
    kind = next((kind for kind in (*_KINDS, DppoError) if isinstance(error, kind)), None)
    if kind is not None:
        return kind, (str(error),), text
    # Such an error is about a path of ours: a failing environment raises an EnvironmentBrokenError.
    if isinstance(error, OSError) and error.errno is not None:
        return OSError, (error.errno, error.strerror, error.filename), text
    return None, (f"{type(error).__name__}: {error}",), text
