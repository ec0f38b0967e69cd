"""One stream entry, as it was delivered."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """`fields` is empty when it was trimmed meanwhile."""

    id: bytes
    fields: Mapping[bytes, bytes]
    deaths: int = 0  # learner processes that ended with it in hand, before one has opened it unharmed
