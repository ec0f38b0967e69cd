"""`python -m ops.tied COMMAND ...`: become a command that ends when its parent does.

For the broker, which is not our code: the wish survives the exec, and no process is added.
"""

import os
import sys

from dppo_redis.shutdown import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
