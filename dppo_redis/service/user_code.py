"""One page that a process shares with its guard: since when it has been inside the user's code.

Code of the user's can hold the interpreter's lock; then no thread of the process can end it or even say
so. The guard (`guard.py`) is another process and reads this page. A process without a guard writes in vain.
"""

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress

_BEGAN, _LIMIT_S, _STATUS = 0, 1, 2
_NO_STATUS = -1.0
_page = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")  # anonymous: what is forked shares it
_page[_STATUS] = _NO_STATUS
_is_inside_here = False  # this process: others may share the page


def detach() -> None:
    """Leave the page to the process that this one was forked from: what happens here is not its affair."""
    global _page
    _page = memoryview(bytearray(mmap.PAGESIZE)).cast("d")
    _page[_STATUS] = _NO_STATUS


def enter() -> None:
    """The main thread calls the user's code."""
    global _is_inside_here
    _is_inside_here = True
    _page[_BEGAN] = time.monotonic()


def _leave() -> None:
    global _is_inside_here
    _is_inside_here = False
    _page[_BEGAN] = 0.0


leave: Callable[[], None] = _leave
"""The user's code has returned or raised."""


def _forked() -> None:
    """A child of a fork inside the user's code is the user's; it must not come back and train beside us."""
    global leave
    if _is_inside_here:
        leave = _end_copy


def _end_copy() -> None:
    if multiprocessing.parent_process() is not None:  # with a task of its own: a copy
        _leave()
        return
    with suppress(OSError):
        os.write(2, b"dppo-redis: the environment forked, and its child came back: that child ends here\n")
    os._exit(1)


os.register_at_fork(after_in_child=_forked)


def is_inside() -> bool:
    """Whether the process is inside the user's code, or died there."""
    return bool(_page[_BEGAN])


def began() -> float | None:
    """When the present call of the user's code began, by the monotonic clock; None between calls."""
    return _page[_BEGAN] or None


def set_limit(seconds: float) -> None:
    """How long one call may take."""
    _page[_LIMIT_S] = seconds


def limit_s() -> float | None:
    """How long one call may take; None: it is not known yet."""
    return _page[_LIMIT_S] or None


def announce_end(status: int) -> None:
    """All is done: only the interpreter has to end, with this exit status."""
    _page[_STATUS] = status


def announced_status() -> int | None:
    """The exit status of a process that is done; None before."""
    return None if _page[_STATUS] == _NO_STATUS else int(_page[_STATUS])
