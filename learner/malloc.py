"""Makes the C library keep freed memory, and turns out-of-memory errors into advice about settings."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import PpoConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
_KEPT_BYTES = 64 * 2**20
_LARGEST_IN_HEAP = 32 * 2**20  # the most that glibc accepts, and where its own adaption ends
_OUT_OF_MEMORY = (  # parts of the messages of torch, its libraries and drivers
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "could not create a memory",
)


def keep_freed_memory() -> None:
    """Keep up to 64 MB of freed memory for reuse; does nothing where the C library is not glibc.

    By default glibc returns free memory at the end of its heap to the system, and the system fills pages with
    zeros when the process needs them again. Rollouts of 82 KB are allocated and freed a batch at a time: for
    them this was more than half of the cost of reading. Setting the first threshold ends glibc's adaption of
    the second, so both are set.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


@contextmanager
def naming_memory_settings(ppo: PpoConfig) -> Iterator[None]:
    """Turn an out-of-memory error of an update into an error that names the settings to lower.

    Raises:
        ConfigurationError: the memory did not suffice; another try would fail, too.
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
    """Whether an error of numpy, torch or its libraries means that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)
