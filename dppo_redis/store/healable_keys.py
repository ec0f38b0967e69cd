"""The keys that a learner heals: their stored values, and the damage that others did to them."""

from dataclasses import dataclass
from typing import cast

import redis

from dppo_redis.protocol.wire import sha256
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import parse_counts


@dataclass(frozen=True)
class StoredWeights:
    """The small fields of the weights hash, as they are stored."""

    epoch: int
    version: int
    bytes: int
    sha256: str
    blob_bytes: int  # length of the stored blob


@dataclass(frozen=True)
class HealableKeys:
    """Stored values of the keys that a learner heals."""

    weights: StoredWeights | None  # None if a field is missing or is no number
    spec: str | None
    boots: dict[str, int]  # -1 if the stored value is no number
    state: str | None  # of the control key


def read_healable_keys(client: Client, keys: RunKeys) -> HealableKeys:
    """Read the stored values in one round trip, without the weights blob."""
    pipeline = client.pipeline(transaction=False)
    pipeline.hmget(keys.weights, ["epoch", "version", "bytes", "sha256"])
    pipeline.hstrlen(keys.weights, "blob")
    pipeline.get(keys.spec)
    pipeline.hgetall(keys.boots)
    pipeline.hget(keys.control, "state")
    weights, blob_bytes, spec, boots, state = pipeline.execute()
    return HealableKeys(
        weights=_stored_weights(weights, blob_bytes),
        spec=None if spec is None else spec.decode(errors="replace"),
        boots=dict.fromkeys((name.decode(errors="replace") for name in boots), -1) | parse_counts(boots),
        state=None if state is None else state.decode(errors="replace"),
    )


def _stored_weights(fields: list[bytes | None], blob_bytes: int) -> StoredWeights | None:
    epoch, version, length, digest = fields
    if epoch is None or version is None or length is None or digest is None:
        return None
    try:
        return StoredWeights(
            int(epoch), int(version), int(length), digest.decode(errors="replace"), int(blob_bytes)
        )
    except ValueError:
        return None


def read_blob_digest(client: Client, keys: RunKeys) -> str | None:
    """SHA-256 of the weights blob that is stored now; None if the server cannot send so many bytes."""
    try:
        return sha256(cast(bytes | None, client.hget(keys.weights, "blob")) or b"")
    except (redis.ConnectionError, redis.TimeoutError):
        return None


def remove_foreign_types(client: Client, keys: RunKeys) -> list[str]:
    """Remove keys that another program overwrote with another type; returns their names.

    Until then commands on these keys fail with WRONGTYPE. The other processes wait for the repair.
    """
    pipeline = client.pipeline(transaction=False)
    for key in keys.types():
        pipeline.type(key)
    found = cast(list[bytes], pipeline.execute())
    foreign = [
        key for (key, expected), kind in zip(keys.types().items(), found, strict=True)
        if kind.decode() not in (expected, "none")
    ]  # fmt: skip
    if foreign:
        client.unlink(*foreign)
    return foreign
