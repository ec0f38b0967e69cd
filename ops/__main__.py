"""`python -m ops` is the `dppo-redis` command."""

import sys

from ops.cli import main

sys.exit(main())
