"""How the process keeps its memory."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
_KEPT_BYTES = 64 * 2**20
_LARGEST_IN_HEAP = 32 * 2**20  # the most that glibc accepts, and where its own adaption ends


def keep_freed_memory() -> None:
    """Keep up to 64 MB of freed memory for reuse; does nothing where the C library is not glibc.

    By default glibc hands what lies free at the end of its heap back to the system, which fills pages
    with zeros when they are asked for again: for rollouts of 82 KB, whose batches come and go as one,
    that was more than half of what reading them cost. The second threshold must be set with the
    first, which otherwise ends its adaption.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
