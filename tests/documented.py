"""Imports each script in `docs` as a module, in the form in which a user would copy it."""

import runpy
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"


def documented(file: str) -> dict[str, Any]:
    """The names that a script of the documentation defines."""
    return runpy.run_path(str(DOCS / file))
