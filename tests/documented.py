"""The scripts in `docs`, as somebody runs them who copied them: each is a module of its own."""

import runpy
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"


def documented(file: str) -> dict[str, Any]:
    """The names that a script of the documentation defines."""
    return runpy.run_path(str(DOCS / file))
