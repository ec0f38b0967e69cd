"""Starts processes one after another and kills each with SIGKILL at a random moment."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator


def lives(work: Callable[[int, int], None], kills: int, longest_s: float) -> Iterator[bytes]:
    """The bytes that each process wrote before its end: `work` gets its number, from 1, and a pipe.

    A life is killed at most `longest_s` after its first word. Raises RuntimeError where it ends by itself.
    """
    rng = random.Random(8)
    for life in range(1, kills + 1):
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            work(life, tell)
        os.close(tell)
        with os.fdopen(told, "rb", buffering=0) as stream:
            first = stream.read(1)
            time.sleep(rng.uniform(0, longest_s))
            os.kill(pid, signal.SIGKILL)
            if os.WIFEXITED(os.waitpid(pid, 0)[1]):
                raise RuntimeError(f"life {life} ended by itself")
            yield first + stream.readall()
