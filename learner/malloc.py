"""How the process keeps its memory, and what it says when there is none."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import PpoConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
_KEPT_BYTES = 64 * 2**20
_LARGEST_IN_HEAP = 32 * 2**20  # the most that glibc accepts, and where its own adaption ends
_OUT_OF_MEMORY = (  # as torch, its libraries and drivers say it
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "could not create a memory",
)


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


@contextmanager
def naming_memory_settings(ppo: PpoConfig) -> Iterator[None]:
    """Have an update that finds no memory say which settings to lower: trying it again would not help.

    Raises:
        ConfigurationError: there was not enough memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigurationError(
            f"out of memory: set ppo.batch_steps ({ppo.batch_steps}) or ppo.minibatch_size "
            f"({ppo.minibatch_size}) lower; the table at the start of a run says what the learner needs"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of numpy, torch or its libraries says so."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)
