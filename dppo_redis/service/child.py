"""Runs something of the user's in a child of this process, under a limit, and takes the answer.

Whatever it does there (hang, crash, take signals over, start threads and processes, change directory) ends
with the child. It is forked: nothing is imported again.
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
_CLOSING_S = 2.0  # how long the child may take to free what it built, once it has answered
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
    what: str,
    work: Callable[[], AbstractContextManager[T]],
    *,
    limit_s: float,
    knob: str | None = None,
    stop: StopRequest | None = None,
    traces: bool = True,
) -> T:
    """What `work` answers in a child; leaving its context frees what it built, there, under a short limit.

    `what` is how messages name it, `knob` the flag that sets the limit, if one does; with `traces` the child
    shows where it hangs or crashes.

    Raises:
        EnvironmentHangsError: no answer within the limit.
        EnvironmentBrokenError: the child died, or something was raised that is no error of ours.
        StoppedError: a stop was requested meanwhile.
        DppoError, OSError: as `work` raised it.
    """
    adopt_orphans()  # what the child leaves behind is found below this process
    mark = f"{_MARK}={secrets.token_hex(8)}"
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.environ[_MARK] = mark.partition("=")[2]  # inherited by all that it starts
        _be_the_child(parent, work, writer, max(0.1, limit_s - 0.2) if traces else None)
    os.close(writer)
    ended: int | None = None
    try:
        answer, ended = _wait(pid, reader, what, limit_s, knob, stop or StopRequest())
    finally:
        os.close(reader)
        if ended is None:
            _end(pid)
        _end_strays(pid, mark.encode())
    if answer is None:
        raise EnvironmentBrokenError(f"{what} ended the process that it was in: {_status_text(ended or 0)}")
    return cast(T, _open(answer, what))


def _wait(
    pid: int, reader: int, what: str, limit_s: float, knob: str | None, stop: StopRequest
) -> tuple[bytes | None, int | None]:
    """The child's answer, None if it died before; its wait status, None while it lives."""
    began, next_word_s, received = time.monotonic(), _FIRST_WORD_S, b""
    while True:
        ended = _poll(pid)  # before the pipe: what it has written by then can be read
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
            raise StoppedError(f"stopped while {what} had not answered yet")
        if taken_s > limit_s:
            raise EnvironmentHangsError(
                f"{what} has not answered for {limit_s:g} s"
                + (
                    f", and building it, one reset and one step may take that long: see {knob}"
                    if knob
                    else ""
                )
            )
        if taken_s > next_word_s:
            next_word_s *= 2
            limit = f"the limit is {limit_s:g} s{f', see {knob}' if knob else ''}"
            _log.info("%s has not answered for %.0f s; %s", what, taken_s, limit)


def _is_whole(received: bytes) -> bool:
    size = _LENGTH.size
    return len(received) >= size and len(received) >= size + _LENGTH.unpack_from(received)[0]


def _poll(pid: int) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # the kernel does that here: SIGCHLD is ignored
        return 0
    return status if found else None


def _await_end(pid: int, stop: StopRequest) -> int | None:
    """Let the child free what it built; None if it takes too long."""
    deadline = time.monotonic() + _CLOSING_S
    while (ended := _poll(pid)) is None and time.monotonic() < deadline and not stop.requested:
        time.sleep(_SLICE_S / 20)
    return ended


def _end(pid: int) -> None:
    """Kill the child and all that it started: stopped first, so that nothing more is started."""
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
    """End what the child started and left behind, which has become ours."""

    def find() -> set[int]:
        return {pid for pid in descendants() if _was_started_by(child, mark, pid)}

    if _has_children():
        strays = find()
        _kill(find)
        _reap(strays)


def _has_children() -> bool:
    """Whether this process has any, ended or not; who adopts orphans and has none has no descendants."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(find: Callable[[], set[int]]) -> None:
    """Those that are found, until none is."""
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
    """By its session, or by what is in its environment if it has begun one of its own."""
    try:
        return os.getsid(pid) == child or mark in Path("/proc", str(pid), "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return False


def _status_text(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _open(answer: bytes, what: str) -> Any:
    value, error = pickle.loads(answer)  # noqa: S301 written by our own child
    if error is None:
        return value
    kind, arguments, text = error
    if kind is None:
        kind, arguments = EnvironmentBrokenError, (f"{what} raised {arguments[0]}",)
    raise kind(*arguments) from ChildTracebackError(text)


def _be_the_child(
    parent: int, work: Callable[[], AbstractContextManager[Any]], writer: int, trace_after_s: float | None
) -> NoReturn:
    """Answer, close the environment and exit, even if the user's code left threads running."""
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
        os.dup2(2, 1)  # standard output is for what the command itself has to say
        faulthandler.disable()
        if trace_after_s is not None:
            faulthandler.enable(2)
            faulthandler.dump_traceback_later(trace_after_s, file=2)
        _answer(work, writer)
    except BaseException:  # noqa: BLE001 of the freeing: nobody waits for its answer
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
        except BaseException as error:  # noqa: BLE001 code of the user's: anything may come out of it
            message = pickle.dumps((None, _as_plain(error)))
        faulthandler.cancel_dump_traceback_later()
        left = memoryview(_LENGTH.pack(len(message)) + message)
        while left:
            left = left[os.write(writer, left) :]


def _as_plain(error: BaseException) -> tuple[type[Exception] | None, tuple[Any, ...], str]:
    """The kind of error it is, None if it is none that a command expects; what it says; its traceback."""
    text = "".join(traceback.format_exception(error.__cause__ or error))
    kind = next((kind for kind in (*_KINDS, DppoError) if isinstance(error, kind)), None)
    if kind is not None:
        return kind, (str(error),), text
    if isinstance(error, OSError) and error.errno is not None:  # of a path of ours: what is built has its own
        return OSError, (error.errno, error.strerror, error.filename), text
    return None, (f"{type(error).__name__}: {error}",), text
