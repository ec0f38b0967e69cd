"""Reads published weights: first their version, their bytes only if it is new.

`fenced_writes.py` writes them.
"""

import re
from dataclasses import dataclass
from typing import cast

from dppo_redis.errors import WireError
from dppo_redis.protocol.weights import Weights, WeightsId
from dppo_redis.protocol.wire import decode_weights, sha256
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys

_DIGEST, _SIZE = re.compile(rb"[0-9a-f]{64}"), re.compile(rb"[0-9]{1,12}")


@dataclass(frozen=True)
class PublishedBlob:
    """What Redis says about the bytes of the current publication."""

    sha256: str  # 64 hex digits
    bytes: int


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

    def peek_blob(self) -> PublishedBlob | None:
        """Digest and size of the current publication, read without its bytes."""
        digest, size = cast(list[bytes | None], self._client.hmget(self._key, ["sha256", "bytes"]))
        if digest is None or size is None or not _DIGEST.fullmatch(digest) or not _SIZE.fullmatch(size):
            return None  # another program overwrote it; the learner repairs it
        return PublishedBlob(digest.decode(), int(size))

    def fetch(self) -> Weights | None:
        """The current publication, after its digest was checked; None if there is none.

        Raises:
            WireError: the stored blob is damaged; keep the old policy, the learner heals it.
        """
        found = self.fetch_blob()
        return None if found is None else decode_weights(found[0])

    def fetch_blob(self) -> tuple[bytes, str] | None:
        """The bytes of the current publication and their digest, which was checked; None if there is none.

        Raises:
            WireError: the stored blob is damaged; keep the old policy, the learner heals it.
        """
        blob, digest = cast(list[bytes | None], self._client.hmget(self._key, ["blob", "sha256"]))
        if blob is None or digest is None:
            return None
        found = sha256(blob)
        if found.encode() != digest:
            raise WireError("crc", "the weights blob does not match its sha256")
        return blob, found
