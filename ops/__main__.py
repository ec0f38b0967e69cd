"""`python -m ops` is the `dppo-redis` command."""

import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    # Python searches the working directory first, and would import the user's `workers.py` instead of ours.
    del sys.path[0]

from ops.cli import main

sys.exit(main())
