"""How often an array is copied between the collector's buffers and the learner's batch: once on each side."""

import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import checksum, encode_rollout, encode_weights
from dppo_redis.spaces.observations import Array
from learner.intake.decoder import RolloutDecoder
from tests.factories import make_rollout, make_spec, make_weights

LONG = make_spec(rollout_steps=20_000)
A_TENTH = 0.1


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most memory that was allocated at one moment of the call, its result included."""
    call()  # fills caches
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
        del result
        return peak
    finally:
        tracemalloc.stop()


def with_metrics(spec: Spec) -> Rollout:
    rollout = make_rollout(spec, terminated=[(1, 0), (2, 0)])
    return replace(rollout, metrics={"rewards": np.array([1.5, np.nan]), "laps": np.array([2.0, 3.0])})


def everything(rollout: Rollout) -> list[Array]:
    return [*rollout.metrics.values(), *(getattr(rollout, name) for name in ARRAY_NAMES)]


def test_packing_a_rollout_allocates_its_payload_and_no_more() -> None:
    rollout = make_rollout(LONG)
    size = len(encode_rollout(rollout))
    assert peak_bytes(lambda: encode_rollout(rollout)) < (1 + A_TENTH) * size


def test_packing_weights_allocates_their_message_and_no_more() -> None:
    arrays = {f"policy.{layer}": np.zeros((256, 256), np.float32) for layer in range(8)}
    weights = replace(make_weights(make_spec()), arrays=arrays)
    size = len(encode_weights(weights))
    assert peak_bytes(lambda: encode_weights(weights)) < (1 + A_TENTH) * size


@pytest.mark.parametrize("make", [make_rollout, with_metrics])
def test_the_learner_decodes_views_of_what_it_received(make: Callable[[Spec], Rollout]) -> None:
    spec = make_spec()
    rollout = make(spec)
    payload, decoder = encode_rollout(rollout), RolloutDecoder(spec)
    received = np.frombuffer(payload, np.uint8)
    for _ in range(2):  # the first one of its layout, too
        decoded = decoder.decode(payload)
        assert list(decoded.metrics) == list(rollout.metrics)
        for mine, sent in zip(everything(decoded), everything(rollout), strict=True):
            assert not mine.size or np.shares_memory(mine, received)
            np.testing.assert_array_equal(mine, sent)


def test_decoding_allocates_less_than_a_tenth_of_the_payload() -> None:
    payload, decoder = encode_rollout(make_rollout(LONG)), RolloutDecoder(LONG)
    assert peak_bytes(lambda: decoder.known(payload)) < A_TENTH * len(payload)


@pytest.mark.parametrize("size", [0, 1, 15, 4096, 82_570])
def test_the_checksum_is_zlibs_whichever_library_computes_it(size: int) -> None:
    payload = np.random.default_rng(size).bytes(size)
    assert checksum(payload) == zlib.crc32(payload)
