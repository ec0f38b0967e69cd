"""Records when a process entered the user's code, in a page of memory that it shares with its guard.

The user's code can hold the interpreter's lock. Then no thread of the process can end it or log anything.
The guard (`guard.py`) is another process and reads this page. Without a guard no process reads the page.
"""

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress

_BEGAN, _LIMIT_S, _STATUS = 0, 1, 2
_NO_STATUS = -1.0
_page = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")  # anonymous: forked processes share it
_page[_STATUS] = _NO_STATUS
_is_inside_here = False  # this process: others may share the page


def detach() -> None:
    """Give this forked process a page of its own; the process that forked it keeps the shared one."""
    global _page
    _page = memoryview(bytearray(mmap.PAGESIZE)).cast("d")
    _page[_STATUS] = _NO_STATUS


def enter() -> None:
    """Record that the main thread calls the user's code."""
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
    """If the user's code forked, have the child end when that code returns: it must not train, too."""
    global leave
    if _is_inside_here:
        leave = _end_copy


def _end_copy() -> None:
    if multiprocessing.parent_process() is not None:  # multiprocessing started it to run an environment
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
    """The monotonic time at which the present call of the user's code began; None between calls."""
    return _page[_BEGAN] or None


def set_limit(seconds: float) -> None:
    """Set the longest time of one call."""
    _page[_LIMIT_S] = seconds


def limit_s() -> float | None:
    """The longest time of one call, in seconds; None if it is not set yet."""
    return _page[_LIMIT_S] or None


def announce_end(status: int) -> None:
    """Record that the work is done and that only the interpreter has to end, with this exit status."""
    _page[_STATUS] = status


def announced_status() -> int | None:
    """The exit status of a process that is done; None before."""
    return None if _page[_STATUS] == _NO_STATUS else int(_page[_STATUS])
