"""Checks whether Redis still holds the weights that were published last."""

from dppo_redis.protocol.weights import Weights
from dppo_redis.store.client import Client
from dppo_redis.store.healable_keys import HealableKeys, read_blob_digest
from dppo_redis.store.keys import RunKeys

_LARGEST_BLOB_READ = 4 * 2**20
_CHECKS_PER_LARGE_READ = 30


class WeightsWatch:
    """Compares epoch, version, size and content at every check; the content of a large blob at every 30th."""

    def __init__(self, client: Client, keys: RunKeys) -> None:
        self._client = client
        self._keys = keys
        self._checks = 0

    def is_whole(self, healable: HealableKeys, last: Weights) -> bool:
        """Whether the weights key holds `last`."""
        stored = healable.weights
        if stored is None or (stored.epoch, stored.version) != (last.epoch, last.version):
            return False
        if stored.blob_bytes != stored.bytes:
            return False
        self._checks += 1
        if stored.blob_bytes > _LARGEST_BLOB_READ and self._checks % _CHECKS_PER_LARGE_READ:
            return True
        return read_blob_digest(self._client, self._keys) in (stored.sha256, None)
