"""`python -m ops.fleet.run_tied COMMAND ...`: runs a command that ends when its parent process ends.

The broker needs this, since it does not watch its parent itself. On Linux this process replaces itself with
the command: the kernel keeps the parent-death signal across exec. On other systems this process stays and
passes SIGTERM and SIGINT on.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

from dppo_redis.service.shutdown import die_with_parent


def run_and_pass_signals_on(command: list[str]) -> int:
    """Run a command to its end. SIGTERM and SIGINT end the command."""
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
        sys.exit(run_and_pass_signals_on(sys.argv[1:]))
