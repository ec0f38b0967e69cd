"""`python -m ops.bench.staleness`; also `dppo-redis bench staleness`."""

import sys

from ops.bench.staleness.command import main

sys.exit(main())
