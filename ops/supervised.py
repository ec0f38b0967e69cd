"""`python -m ops.supervised CONFIGURATION DIRECTORY`: supervisord, tied to the command that started it.

When that command is killed, supervisord gets SIGTERM and stops the fleet in order; the private
DIRECTORY (sockets) goes with it.
"""

import os
import shutil
import sys

from supervisor import supervisord

from dppo_redis.shutdown import PARENT_PID_VARIABLE, die_with_parent


def main(configuration: str, directory: str) -> None:
    """Run supervisord in the foreground until it is told to stop."""
    die_with_parent()
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())  # inherited by every service
    try:
        supervisord.main(["-n", "-c", configuration])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
