"""Reads Redis with plain commands, not with the product's own code."""

from typing import Any, cast

from dppo_redis.store.client import Client
from dppo_redis.store.keys import GROUP, RunKeys

OUTCOMES = ("trained", "stale", "duplicate", "refused", "lost")


def integer(reply: Any) -> int:
    """A reply that is a number."""
    return int(reply)


def hash_of(client: Client, key: str, but: str = "") -> dict[str, str]:
    """A hash as text, without the field `but`."""
    stored = cast(dict[bytes, bytes], client.hgetall(key))
    return {name.decode(): value.decode() for name, value in stored.items() if name.decode() != but}


def lengths_of(client: Client, key: str) -> dict[str, int]:
    """Field name to number of bytes."""
    stored = cast(dict[bytes, bytes], client.hgetall(key))
    return {name.decode(): len(value) for name, value in stored.items()}


def published(client: Client, keys: RunKeys) -> tuple[int, int]:
    """Epoch and version of the weights."""
    stored = hash_of(client, keys.weights, but="blob")
    return int(stored["epoch"]), int(stored["version"])


def ledger_of(client: Client, keys: RunKeys) -> dict[str, int]:
    """The ledger as Redis holds it."""
    return {name: int(count) for name, count in hash_of(client, keys.ledger).items()}


def imbalance(client: Client, keys: RunKeys) -> int:
    """entries-added (of all streams) minus everything with an outcome minus what is in the stream."""
    ledger = ledger_of(client, keys)
    added = int(cast(Any, client.xinfo_stream(keys.rollouts))["entries-added"])
    settled = sum(ledger.get(outcome, 0) for outcome in OUTCOMES)
    return ledger.get("entries_before", 0) + added - settled - integer(client.xlen(keys.rollouts))


def pending(client: Client, keys: RunKeys) -> int:
    """Entries delivered and not acknowledged."""
    return int(cast(Any, client.xpending(keys.rollouts, GROUP))["pending"])


def version_of(client: Client, keys: RunKeys) -> int:
    """The published version; 0 when there is none."""
    return int(cast(bytes | None, client.hget(keys.weights, "version")) or 0)


def commands(client: Client, name: str) -> int:
    """How often the server has been told to do `name`."""
    stats = client.info("commandstats")
    return int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"])


def blocked(client: Client) -> int:
    """Clients that wait in a blocking read."""
    return int(client.info("clients")["blocked_clients"])


def holder_of(client: Client, keys: RunKeys) -> str:
    """The holder of the lease; empty if there is none."""
    return (cast(bytes | None, client.get(keys.lease)) or b"").decode().partition(" ")[0]
