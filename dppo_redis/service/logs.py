"""Log lines of services: one format, to standard error; supervisord rotates the files.

And a command's answers: to standard output, which it does not share with the user's code.
"""

import io
import logging
import os
import sys
import time
from typing import TextIO

_answers: TextIO | None = None


def configure(service: str) -> logging.Logger:
    """Send this process's log lines to standard error, marked with the service's name."""
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {service} %(levelname)s %(message)s",
        force=True,
    )
    return logging.getLogger("dppo")


def keep_output_apart() -> None:
    """From here on standard output is for `answer` alone; whatever else this process prints is an aside.

    It goes to standard error, and so does what a C library or a child prints. The user's code may also close
    its standard output, or put another in its place.
    """
    global _answers
    out = sys.stdout
    out.flush()
    _answers = open(os.dup(1), "w", encoding=out.encoding, errors=out.errors)  # noqa: SIM115 until the end
    os.dup2(2, 1)
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(line_buffering=True)


def answers() -> TextIO:
    """Where a command's answers go."""
    return _answers or sys.stdout


def answer(text: str) -> None:
    """Say what the command was asked for."""
    print(text, file=answers(), flush=True)


class RateLimit:
    """Lets a repeated message through once per `interval_s`."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._next = 0.0

    def due(self) -> bool:
        """Whether the message may be written now; counts as written when True."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True
