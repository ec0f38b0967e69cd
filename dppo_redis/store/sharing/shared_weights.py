"""Fetches a large publication once for all processes of a run on one host, and leaves it in a file for them.

Redis alone says which weights are current: each reader asks Redis for their digest, and takes a file only if
its content has that digest. So a file that is old, cut off or changed is never used. A process that finds no
such file takes a lock and fetches. A dead process holds no lock; a frozen one delays the others for a limited
time. Where sharing does not work, each process fetches for itself.
"""

import logging
import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dppo_redis.errors import StoppedError
from dppo_redis.protocol.weights import Weights
from dppo_redis.protocol.wire import decode_weights, sha256
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.sharing.host_directory import HostDirectory, has_room, parents, take
from dppo_redis.store.weight_store import PublishedBlob, WeightStore

LEAST_BYTES = 2**20  # smaller publications cost less than the files would
_FETCHING = "fetching"
_POLL_S = 0.01
_JITTER = random.Random()
_LEAST_PATIENCE_S = 5.0
_SLOWEST = 2**20  # bytes per second of a fetch that others still wait for
_log = logging.getLogger("dppo")


class SharedWeights:
    """The weights of one run, for a reader that shares large publications with others on its host.

    Redis errors pass through; callers translate them.
    """

    def __init__(
        self,
        store: WeightStore,
        name: str,
        stop: StopRequest,
        *,
        places: Iterator[Path] | None = None,
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        """`name` is that of server and run; `places` are private directories, tried in this order."""
        self._store = store
        self._name = name
        self._stop = stop
        self._places = parents() if places is None else places
        self._least_bytes = least_bytes
        self._is_small = False  # all publications of a run have the same size
        self._directory: HostDirectory | None = None
        self._works = True

    def fetch(self) -> Weights | None:
        """The current publication, after its digest was checked; None if there is none.

        Raises:
            WireError: the stored blob is damaged; keep the old policy, the learner heals it.
            StoppedError: a stop was requested meanwhile.
        """
        if self._is_small or not self._works:
            return self._store.fetch()
        wanted = self._store.peek_blob()
        if wanted is None:
            return None
        self._is_small = wanted.bytes < self._least_bytes
        if self._is_small:
            return self._store.fetch()
        try:
            directory = self._joined(wanted.bytes)
            blob = self._read(directory, wanted) or self._fetch_for_all(directory, wanted)
        except OSError as error:
            self._works = False
            _log.info("fetching all weights alone, as sharing them on this host fails: %s", error)
            return self._store.fetch()
        return None if blob is None else decode_weights(blob)

    def close(self) -> None:
        """Leave the directory; the last one removes it."""
        self._works = False
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.leave()

    def _joined(self, size: int) -> HostDirectory:
        if self._directory is None:
            place = next((place for place in self._places if has_room(place, size)), None)
            if place is None:
                raise OSError(f"no private directory has room for {size} bytes")
            self._directory = HostDirectory.join(place, self._name)
        return self._directory

    def _read(self, directory: HostDirectory, wanted: PublishedBlob) -> bytes | None:
        """The blob that another process left; None if there is none with this digest."""
        try:
            with open(directory.path / wanted.sha256, "rb", opener=_without_links) as file:
                blob = file.read()
        except FileNotFoundError:
            return None
        return blob if sha256(blob) == wanted.sha256 else None

    def _fetch_for_all(self, directory: HostDirectory, wanted: PublishedBlob) -> bytes | None:
        """Fetch, or wait for another process that does."""
        with self._turn(directory, wanted) as is_ours:
            blob = self._read(directory, wanted)
            if blob is not None:
                return blob
            found = self._store.fetch_blob()
            if found is None:
                return None
            blob, digest = found
            if is_ours:
                _leave(directory.path, blob, digest)
            return blob

    @contextmanager
    def _turn(self, directory: HostDirectory, wanted: PublishedBlob) -> Iterator[bool]:
        """Wait until this process may fetch (True), the file is there, or the wait was too long."""
        lock = directory.open_lock(_FETCHING)
        deadline = time.monotonic() + _LEAST_PATIENCE_S + wanted.bytes / _SLOWEST
        try:
            while not (is_ours := take(lock)) and time.monotonic() < deadline:
                if (directory.path / wanted.sha256).exists():
                    break
                if self._stop.requested:
                    raise StoppedError("stopped while waiting for weights")
                time.sleep(_JITTER.uniform(0.5, 1.5) * _POLL_S)
            yield is_ours
        finally:
            os.close(lock)


def _leave(directory: Path, blob: bytes, digest: str) -> None:
    """Write the file under its final name at once, and remove older ones; the caller holds the lock."""
    part = directory / f"part-{secrets.token_hex(8)}"
    try:
        with open(part, "xb", opener=_private) as file:
            file.write(blob)
        part.rename(directory / digest)
    finally:
        for path in directory.iterdir():  # also what a killed process did not finish
            if path.name.startswith("part-") or (len(path.name) == len(digest) and path.name != digest):
                with suppress(OSError):
                    path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
