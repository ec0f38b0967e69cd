"""Restores the state of a process (signals, directory, streams, ...) after the user's code changed it.

Each call that imports, builds, resets or closes an environment or a custom network runs inside
`keeping_process_state`. A step does not, because it must be fast.
"""

import contextlib
import gc
import io
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO

import numpy as np

from dppo_redis.service import user_code

_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PutBack = Callable[[], object]
# Without the conversion to an enum, which takes three times as long as the rest of `keeping_signals`.
_handler_of: Callable[[signal.Signals], Any] = getattr(signal, "_signal", signal).getsignal


@contextlib.contextmanager
def keeping_process_state() -> Iterator[None]:
    """Restore signal handlers, working directory, streams, logging, warning filters and torch's defaults.

    New entries of `sys.path` stay, because the user's module may need them later. The global random states of
    `random`, numpy and torch stay, too: the user's code owns them, and this product has its own generators.
    """
    nested = user_code.is_inside()
    found = [_signals(), _directory(), _streams(), _logging(), _interpreter_settings(), _torch()]
    if not nested:
        user_code.enter()
    try:
        yield
    finally:
        for put_back in found:
            put_back()
        if not nested:
            user_code.leave()


@contextlib.contextmanager
def keeping_signals() -> Iterator[None]:
    """Restore only stop-signal handlers and working directory: cheap enough for a reset within a step."""
    handlers, put_back_directory = [_handler_of(number) for number in _STOPS], _directory()
    try:
        yield
    finally:
        for number, handler in zip(_STOPS, handlers, strict=True):
            if _handler_of(number) is not handler and handler is not None:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, handler)
        put_back_directory()


def _signals() -> _PutBack:
    """Signal handlers (also those that a C library replaced) and mask; only the main thread can set them."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    handlers = {number: signal.getsignal(number) for number in _OURS}

    def put_back() -> None:
        for number, handler in handlers.items():
            if handler is not None:  # None: a C library installed it
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
        if signal.getitimer(signal.ITIMER_REAL)[0] and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # else the timer would end this process

    return put_back


def _directory() -> _PutBack:
    """The working directory, by its name; the directory may have been removed."""
    try:
        directory = os.getcwd()
    except OSError:
        return lambda: None

    def put_back() -> None:
        with contextlib.suppress(OSError):
            if _working_directory() != directory:
                os.chdir(directory)

    return put_back


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _streams() -> _PutBack:
    """Standard streams, the default timeout of sockets, and the umask for new files."""
    out, err, hook, timeout = sys.stdout, sys.stderr, sys.excepthook, socket.getdefaulttimeout()
    numbers = _descriptor(out), _descriptor(err)
    mask = os.umask(0o077)
    os.umask(mask)

    def put_back() -> None:
        _open_standard_descriptors()
        sys.stdout, sys.stderr, sys.excepthook = out, err, hook
        _open_again(out, numbers[0])
        _open_again(err, numbers[1])
        socket.setdefaulttimeout(timeout)
        os.umask(mask)

    return put_back


def _descriptor(stream: TextIO | None) -> int | None:
    """The stream's file descriptor; None if it has none or is closed."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


def _open_again(stream: TextIO | None, number: int | None) -> None:
    """Reopen a closed stream to the same file. The object stays the same: screens and logs hold it."""
    if number is None or not isinstance(stream, io.TextIOWrapper) or not stream.closed:
        return
    buffer = open(number, "wb", closefd=False)  # noqa: SIM115 it lives as long as the stream
    io.TextIOWrapper.__init__(stream, buffer, "utf-8", "backslashreplace", line_buffering=True)


def _open_standard_descriptors() -> None:
    """Open /dev/null for closed standard descriptors.

    Otherwise a file of ours would get such a number, and the prints of libraries would go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _logging() -> _PutBack:
    root, own = logging.getLogger(), logging.getLogger("dppo")
    kept = [(one, one.level, list(one.handlers), one.disabled, one.propagate) for one in (root, own)]
    handlers = [(one, one.level, list(one.filters)) for one in {*root.handlers, *own.handlers}]
    disabled = logging.root.manager.disable
    filters = list(warnings.filters)

    def put_back() -> None:
        for logger, level, its_handlers, is_disabled, propagates in kept:
            logger.setLevel(level)
            logger.handlers[:] = its_handlers
            logger.disabled, logger.propagate = is_disabled, propagates
        for handler, level, its_filters in handlers:
            handler.setLevel(level)
            handler.filters[:] = its_filters
        logging.disable(disabled)
        warnings.filters[:] = filters  # type: ignore[index]

    return put_back


def _interpreter_settings() -> _PutBack:
    """numpy's handling of floating-point errors, the recursion limit, and whether the collector runs."""
    errors, depth, collects = np.geterr(), sys.getrecursionlimit(), gc.isenabled()

    def put_back() -> None:
        np.seterr(**errors)
        if sys.getrecursionlimit() < depth:  # a higher limit stays: the user's code needs it
            sys.setrecursionlimit(depth)
        if collects != gc.isenabled():
            (gc.enable if collects else gc.disable)()

    return put_back


def _torch() -> _PutBack:
    """torch's defaults; if the user's code imports torch first, the defaults that torch starts with."""
    torch = _imported_torch()
    if torch is None:
        return lambda: _put_back_torch(None)
    state = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
    return lambda: _put_back_torch(state)


def _put_back_torch(state: tuple[Any, ...] | None) -> None:
    torch = _imported_torch()
    if torch is None:
        return
    dtype, threads, grad, anomaly, deterministic = state or (torch.float32, None, True, False, False)
    if torch.get_default_dtype() is not dtype:
        torch.set_default_dtype(dtype)
    if torch.get_default_device().type != "cpu":
        torch.set_default_device("cpu")
    if threads is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if torch.is_grad_enabled() != grad:
        torch.set_grad_enabled(grad)
    if torch.is_anomaly_enabled() != anomaly:
        torch.autograd.set_detect_anomaly(anomaly)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)


def _imported_torch() -> Any:
    """torch if it is completely imported, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_default_dtype") and hasattr(torch, "get_default_device") else None


class TookTooLongError(BaseException):
    """The user's code did not return in time. Not an Exception, because the user's code may catch those."""


@contextlib.contextmanager
def interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise a TookTooLongError in the user's code in the main thread after `limit_s` seconds.

    It interrupts neither native calls nor other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TookTooLongError(f"it did not return within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
