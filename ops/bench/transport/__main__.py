"""`python -m ops.bench.transport`, as `dppo-redis bench transport`."""

import sys

from ops.bench.transport.command import main

sys.exit(main())
