"""`python -m ops.bench.article`; also `dppo-redis bench article`."""

import sys

from ops.bench.article.command import main

sys.exit(main())
