"""Reading and clearing a run's quarantine; the learner writes it through `run_store.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys

_FIELD = b"field:"


@dataclass(frozen=True)
class Quarantined:
    """The first part of an entry that was refused as broken."""

    id: str  # in the quarantine's stream
    entry: str  # its id in the stream of rollouts
    reason: str
    detail: str
    fields: Mapping[str, bytes]  # its plain fields, each cut to its first bytes
    payload: bytes  # its first bytes


def read_quarantine(client: Client, keys: RunKeys) -> list[Quarantined]:
    """All quarantined entries, newest first. Redis errors pass through."""
    found = cast(list[tuple[bytes, dict[bytes, bytes]]], cast(Any, client.xrevrange(keys.quarantine)))
    return [_parse(entry_id, record) for entry_id, record in found]


def clear_quarantine(client: Client, keys: RunKeys) -> int:
    """Remove all quarantined entries; returns how many there were. Redis errors pass through."""
    count = int(client.xlen(keys.quarantine))
    client.unlink(keys.quarantine)
    return count


def _parse(entry_id: bytes, record: Mapping[bytes, bytes]) -> Quarantined:
    fields = {
        name.removeprefix(_FIELD).decode(errors="replace"): value
        for name, value in record.items()
        if name.startswith(_FIELD)
    }

    def text(name: bytes) -> str:
        return record.get(name, b"").decode(errors="replace")

    return Quarantined(
        id=entry_id.decode(),
        entry=text(b"entry"),
        reason=text(b"reason"),
        detail=text(b"detail"),
        fields={name: value for name, value in fields.items() if name != "payload"},
        payload=fields.get("payload", b""),
    )
