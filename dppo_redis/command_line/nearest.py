"""Lists existing names in messages about an unknown name, the most similar one first."""

import difflib
from collections.abc import Iterable

_MOST_LISTED = 8
_LIKE_ONE = 0.6


def listed_instead(name: str, names: Iterable[str]) -> str:
    """The names that there are, the nearest first, with a question where one is near; "" where none are."""
    ordered = sorted(names, key=lambda other: (-_likeness(name, other), other))
    if not ordered:
        return ""
    more = f", and {len(ordered) - _MOST_LISTED} more" if len(ordered) > _MOST_LISTED else ""
    question = f" (did you mean {ordered[0]}?)" if _likeness(name, ordered[0]) >= _LIKE_ONE else ""
    return f"{', '.join(ordered[:_MOST_LISTED])}{more}{question}"


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
