"""Lists existing names in messages about an unknown name, the most similar one first."""

import difflib
from collections.abc import Iterable

_MOST_LISTED = 8
_LEAST_SIMILARITY = 0.6  # for the question "did you mean ...?"


def list_by_similarity(name: str, names: Iterable[str]) -> str:
    """The existing names, the most similar to `name` first; "" if there are none.

    If the first one is similar enough, the text asks whether the user meant it.
    """
    ordered = sorted(names, key=lambda other: (-_similarity(name, other), other))
    if not ordered:
        return ""
    more = f", and {len(ordered) - _MOST_LISTED} more" if len(ordered) > _MOST_LISTED else ""
    question = f" (did you mean {ordered[0]}?)" if _similarity(name, ordered[0]) >= _LEAST_SIMILARITY else ""
    return f"{', '.join(ordered[:_MOST_LISTED])}{more}{question}"


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
