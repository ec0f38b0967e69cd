"""Which names the numbers may have that an environment reports at an episode's end. Imports no numpy."""

import re

MAX_NAMES = 32  # in a run
MAX_NAME = 40  # characters
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME - 1}}}")


def is_name(name: object) -> bool:
    """Whether a number may have this name."""
    return isinstance(name, str) and len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None
