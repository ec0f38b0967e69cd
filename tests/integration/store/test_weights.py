"""Published weights, from writer to readers."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from threading import Event, Thread
from typing import cast

import numpy as np
import pytest

from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.protocol.weights import Weights, WeightsId
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.weight_store import WeightStore
from tests.conftest import RedisServer, opened
from tests.factories import make_description, make_spec, make_weights
from tests.integration.learner_side import in_background, lead
from tests.integration.looking import integer

SPEC = make_spec()
TEMPLATE = make_weights(SPEC)
VERSIONS = 2000
READERS = 8


def filled(version: int) -> Weights:
    """Weights all of whose numbers are their version."""
    arrays = {name: np.full_like(array, version) for name, array in TEMPLATE.arrays.items()}
    return replace(TEMPLATE, version=version, update=version, arrays=arrays)


class Watcher:
    """Reads as fast as it can, and keeps every publication it saw and every mismatch."""

    def __init__(self, url: str, keys: RunKeys, done: Event) -> None:
        self.seen: list[tuple[int, int, int]] = []  # epoch, version, update
        self.torn: list[str] = []
        self._url, self._keys, self._done = url, keys, done
        self.thread = Thread(target=self._watch)

    def _watch(self) -> None:
        with opened(self._url) as client:
            store = WeightStore(client, self._keys)
            while not self._done.wait(0.0005):  # without a pause the writer would starve
                self._look(store)
            self._look(store)

    def _look(self, store: WeightStore) -> None:
        try:
            weights = store.fetch()
        except WireError as error:
            self.torn.append(str(error))
            return
        if weights is None:
            return
        self.seen.append((weights.epoch, weights.version, weights.update))
        for name, array in weights.arrays.items():
            if (array != weights.update).any():
                self.torn.append(f"update {weights.update}, {name} of {array.flat[0]}")


@contextmanager
def watching(url: str, keys: RunKeys) -> Iterator[list[Watcher]]:
    """Readers of a run's weights, until the block ends, and once more then."""
    done = Event()
    watchers = [Watcher(url, keys, done) for _ in range(READERS)]
    for watcher in watchers:
        watcher.thread.start()
    try:
        yield watchers
    finally:
        done.set()
        for watcher in watchers:
            watcher.thread.join()


def test_no_reader_ever_sees_weights_and_version_that_do_not_belong_together(
    redis_server: RedisServer, client: Client, keys: RunKeys
) -> None:
    writes = FencedWrites(client, keys)
    writes.acquire("a", ttl_ms=60_000, epoch=0, floor=0)
    with watching(redis_server.url, keys) as watchers:
        for version in range(1, VERSIONS + 1):
            assert writes.publish(filled(version)) is None
    for watcher in watchers:
        assert watcher.torn == []
        assert all(update == version for _, version, update in watcher.seen)
        assert watcher.seen == sorted(watcher.seen)
        assert watcher.seen[-1] == (1, VERSIONS, VERSIONS)


# Known failure KF-OPS-08.
@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_a_publisher_killed_at_any_moment_leaves_the_old_or_the_new_weights_in_full(
    private_server: RedisServer, private_client: Client, keys: RunKeys, kills: int
) -> None:
    private_client.set(keys.spec, make_description(SPEC).to_text())
    program = [sys.executable, "-m", "tests.integration.dying_publisher"]
    with watching(private_server.url, keys) as watchers:
        subprocess.run([*program, private_server.url, keys.run, str(kills)], check=True, timeout=120)
    numbers: dict[int, tuple[int, int]] = {}  # what each version was seen to be
    for watcher in watchers:
        assert watcher.torn == []
        for epoch, version, update in watcher.seen:
            assert numbers.setdefault(version, (epoch, update)) == (epoch, update)
        assert all(before == after or before[1] < after[1] for before, after in pairwise(watcher.seen))
        assert watcher.seen == sorted(watcher.seen)
    assert integer(private_client.get(keys.epoch)) >= kills
    assert len({epoch for epoch, _ in numbers.values()}) >= 3  # several lived long enough to publish


@pytest.fixture
def store(client: Client, keys: RunKeys) -> WeightStore:
    writes = FencedWrites(client, keys)
    writes.acquire("a", ttl_ms=60_000, epoch=0, floor=0)
    writes.publish(filled(7))
    return WeightStore(client, keys)


def test_fetched_weights_equal_the_published_ones(store: WeightStore) -> None:
    weights = store.fetch()
    assert weights is not None
    assert vars(weights) | {"arrays": {}} == vars(filled(7)) | {"arrays": {}}
    for name, array in filled(7).arrays.items():
        np.testing.assert_array_equal(weights.arrays[name], array)


def test_a_look_at_the_version_moves_no_weights(store: WeightStore) -> None:
    assert store.peek() == WeightsId(epoch=1, version=7)


def test_nothing_published_is_no_weights(client: Client, keys: RunKeys) -> None:
    assert WeightStore(client, keys).fetch() is None
    assert WeightStore(client, keys).peek() is None


def test_a_blob_that_was_damaged_is_not_taken_for_weights(
    store: WeightStore, client: Client, keys: RunKeys
) -> None:
    blob = bytearray(cast(bytes, client.hget(keys.weights, "blob")))
    blob[len(blob) // 2] ^= 1
    client.hset(keys.weights, "blob", bytes(blob))
    with pytest.raises(WireError, match="sha256"):
        store.fetch()


def test_a_blob_that_lost_its_end_is_not_taken_for_weights(
    store: WeightStore, client: Client, keys: RunKeys
) -> None:
    client.hset(keys.weights, "blob", b"")
    with pytest.raises(WireError):
        store.fetch()


def large_weights(mib: int) -> Weights:
    """Layers of four MiB each."""
    rng = np.random.default_rng(0)
    count = mib // 4
    arrays = {f"policy.{i}.weight": rng.standard_normal((1024, 1024), dtype=np.float32) for i in range(count)}
    return replace(make_weights(SPEC), arrays=arrays)


def test_weights_of_64_mib_travel_whole_within_seconds(client: Client, keys: RunKeys) -> None:
    large = large_weights(64)
    writes = FencedWrites(client, keys)
    writes.acquire("a", ttl_ms=60_000, epoch=0, floor=0)
    started = time.monotonic()
    writes.publish(large)
    weights = WeightStore(client, keys).fetch()
    assert time.monotonic() - started < 10  # half a second on an idle machine
    assert weights is not None
    for name, array in large.arrays.items():
        np.testing.assert_array_equal(weights.arrays[name], array)


def test_weights_larger_than_the_server_accepts_are_not_published_for_ever(
    private_client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    leadership = lead(private_client, keys, stop)
    private_client.config_set("proto-max-bulk-len", "1mb")
    arrays = large_weights(4).arrays
    with in_background(lambda: leadership.publisher.publish(arrays, 1, 0, 0), stop) as publishing:
        error = publishing.exception(20)
    assert isinstance(error, ConfigurationError)
    assert "proto-max-bulk-len" in str(error)
