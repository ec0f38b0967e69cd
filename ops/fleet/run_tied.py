"""`python -m ops.fleet.run_tied COMMAND ...`: runs a command that ends when its parent process ends.

The broker needs this because it is not our code. On Linux this process replaces itself with the command:
the kernel keeps the parent-death signal across exec, and no process is added. Elsewhere this process stays
and passes SIGTERM on.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

from dppo_redis.service.shutdown import die_with_parent


def stay_beside(command: list[str]) -> int:
    """Run a command to its end; SIGTERM and SIGINT are passed on to it."""
    child = subprocess.Popen(command)

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        child.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    return child.wait()


if __name__ == "__main__":
    die_with_parent()
    if sys.platform == "linux":
        os.execv(sys.argv[1], sys.argv[1:])
    else:
        sys.exit(stay_beside(sys.argv[1:]))
