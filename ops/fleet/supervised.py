"""`python -m ops.fleet.supervised CONFIGURATION DIRECTORY`: supervisord, tied to the command that started it.

When that command is killed, supervisord gets SIGTERM and stops the fleet in order; the private
DIRECTORY (sockets) goes with it.
"""

import contextlib
import io
import os
import shutil
import sys
from typing import TextIO, cast

from supervisor import supervisord

from dppo_redis.service.shutdown import PARENT_PID_VARIABLE, die_with_parent


class _ForgivingStream(io.TextIOBase):
    """Standard error that a full disk does not turn into an exception.

    supervisord reports a log it cannot write by writing to standard error; were that to raise too,
    supervisord would die and take the fleet with it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)


def main(configuration: str, directory: str) -> None:
    """Run supervisord in the foreground until it is told to stop."""
    die_with_parent()
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())  # inherited by every service
    sys.stderr = cast(TextIO, _ForgivingStream(sys.stderr))
    try:
        supervisord.main(["-n", "-c", configuration])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
