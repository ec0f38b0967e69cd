"""`python -m ops.bench.uneven`."""

import sys

from ops.cli import main

sys.exit(main(["bench", "uneven", *sys.argv[1:]]))
