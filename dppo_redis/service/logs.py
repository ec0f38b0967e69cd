"""Log lines go to standard error in one format; a command's answers go to standard output.

supervisord rotates the log files. The user's code cannot write to a command's standard output.
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
    """Keep standard output for `answer`: from now on all other output goes to standard error.

    That holds for prints of this process, of C libraries and of child processes. The user's code may also
    close or replace its standard output.
    """
    global _answers
    out = sys.stdout
    out.flush()
    _answers = open(os.dup(1), "w", encoding=out.encoding, errors=out.errors)  # noqa: SIM115 until the end
    os.dup2(2, 1)
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(line_buffering=True)


def answers() -> TextIO:
    """The stream for a command's answers."""
    return _answers or sys.stdout


def answer(text: str) -> None:
    """Print an answer of the command."""
    print(text, file=answers(), flush=True)


class RateLimit:
    """Lets a repeated message through once per `interval_s`."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._next = 0.0

    def due(self) -> bool:
        """Whether the message may be written now; True counts as written."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True
