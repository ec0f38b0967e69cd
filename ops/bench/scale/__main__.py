"""`python -m ops.bench.scale`; also `dppo-redis bench scale`."""

import sys

from ops.bench.scale.command import main

sys.exit(main())
