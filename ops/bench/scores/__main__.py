"""`python -m ops.bench.scores run|page`; also `dppo-redis bench scores run|page`."""

import sys

from ops.bench.scores.command import main

sys.exit(main())
