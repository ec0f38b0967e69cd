"""Reads published weights: first their version, their bytes only if it is new.

`fenced_writes.py` writes them.
"""

from typing import cast

from dppo_redis.errors import WireError
from dppo_redis.protocol.weights import Weights, WeightsId
from dppo_redis.protocol.wire import decode_weights, sha256
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys


def parse_weights_id(epoch: bytes | None, version: bytes | None) -> WeightsId | None:
    """The identity in two fields of the weights hash; None if no weights are published."""
    if epoch is None or version is None:
        return None
    try:
        return WeightsId(int(epoch), int(version))
    except ValueError:
        return None  # another program overwrote it; the learner repairs it


class WeightStore:
    """The weights hash of one run, for readers. Redis errors pass through; callers translate them."""

    def __init__(self, client: Client, keys: RunKeys) -> None:
        self._client = client
        self._key = keys.weights

    def peek(self) -> WeightsId | None:
        """The identity of the current publication, read without its bytes."""
        epoch, version = cast(list[bytes | None], self._client.hmget(self._key, ["epoch", "version"]))
        return parse_weights_id(epoch, version)

    def fetch(self) -> Weights | None:
        """The current publication, after its digest was checked; None if there is none.

        Raises:
            WireError: the stored blob is damaged; keep the old policy, the learner heals it.
        """
        blob, digest = cast(list[bytes | None], self._client.hmget(self._key, ["blob", "sha256"]))
        if blob is None or digest is None:
            return None
        if sha256(blob).encode() != digest:
            raise WireError("crc", "the weights blob does not match its sha256")
        return decode_weights(blob)
