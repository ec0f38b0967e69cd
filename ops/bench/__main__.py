"""`python -m ops.bench NAME`, as `dppo-redis bench NAME`."""

import sys

from ops.cli import main

sys.exit(main(["bench", *sys.argv[1:]]))
