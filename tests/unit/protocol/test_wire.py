"""Bytes to values and back: messages arrive unchanged, in this release and the next.

The files in tests/golden are what a release wrote. Never write them again under the same number.
A new wire schema gets files of its own, made once by `python -m tests.golden_values`; those of
an older one stay, as what is refused in clear words.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from dppo_redis.errors import WireError
from dppo_redis.protocol.rollout import ARRAY_NAMES, validate
from dppo_redis.protocol.spec import WIRE_SCHEMA, Spec
from dppo_redis.protocol.weights import WeightsId
from dppo_redis.protocol.wire import (
    MAX_PAYLOAD_BYTES,
    checksum,
    decode_rollout,
    decode_weights,
    encode_rollout,
    encode_weights,
)
from dppo_redis.spaces.observations import Array
from tests.factories import GOLDEN, box, make_rollout, make_spec, make_weights
from tests.golden_values import GOLDEN_ROLLOUTS, GOLDEN_WEIGHTS, golden_payloads

SPEC = make_spec()
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": lambda array: array,
    "fortran": np.asfortranarray,
    "transposed": lambda array: array.T,
    "sliced": lambda array: array[::2] if array.ndim else array,
    "reversed": lambda array: array[..., ::-1] if array.ndim else array,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": lambda array: np.broadcast_to(array, array.shape),
}


def round_trip(array: Array) -> Array:
    """The array after a trip in a rollout; nothing but the codec looks at it."""
    rollout = replace(make_rollout(SPEC), observations=array)
    return decode_rollout(encode_rollout(rollout), SPEC).observations


def assert_same(received: Array, sent: Array) -> None:
    """Same shape, native dtype, and the same bits, NaNs and signed zeros included."""
    native = np.array(sent, dtype=sent.dtype.newbyteorder("="), order="C")
    assert received.shape == sent.shape
    assert received.dtype == native.dtype
    assert received.dtype.isnative
    assert received.tobytes() == native.tobytes()


# Known failure KF-WIRE-03.
@given(
    array=st.sampled_from(DTYPES).flatmap(
        lambda dtype: st_numpy.arrays(
            dtype, st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
        )
    ),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_an_array_of_any_dtype_shape_and_layout_arrives_bit_for_bit(array: Array, layout: str) -> None:
    sent = LAYOUTS[layout](array)
    assert_same(round_trip(sent), sent)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_each_layout_keeps_each_number_in_its_place(layout: str) -> None:
    sent = LAYOUTS[layout](np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    np.testing.assert_array_equal(round_trip(sent), sent)
    assert_same(round_trip(sent), sent)


def test_decoded_arrays_are_read_only_and_each_decoding_makes_new_ones() -> None:
    payload = encode_rollout(make_rollout(SPEC))
    decoded = decode_rollout(payload, SPEC)
    for name in ARRAY_NAMES:
        array = getattr(decoded, name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
        np.testing.assert_array_equal(getattr(decode_rollout(payload, SPEC), name), array)


@pytest.mark.parametrize("spec", [make_spec(), make_spec(action=box())], ids=["discrete", "box"])
def test_a_rollout_arrives_whole(spec: Spec) -> None:
    rollout = make_rollout(spec, terminated=[(1, 0)], truncated=[(2, 1)], invalid=[(2, 0)])
    decoded = decode_rollout(encode_rollout(rollout), spec)
    for name in ARRAY_NAMES:
        assert_same(getattr(decoded, name), getattr(rollout, name))
    assert decoded.steps == rollout.steps


@given(
    numbers=st.lists(st.integers(0, 2**63 - 1), min_size=5, max_size=5),
    spec=st.text("0123456789abcdef", min_size=16, max_size=16),
)
def test_weights_arrive_whole_with_their_identity(numbers: list[int], spec: str) -> None:
    names = ("epoch", "version", "update", "trained_steps", "settled_steps")
    identity: dict[str, Any] = dict(zip(names, numbers, strict=True))
    weights = replace(make_weights(make_spec()), spec=spec, **identity)
    decoded = decode_weights(encode_weights(weights))
    assert replace(decoded, arrays={}) == replace(weights, arrays={})
    assert list(decoded.arrays) == list(weights.arrays)
    for name, array in weights.arrays.items():
        assert_same(decoded.arrays[name], array)
    assert decoded.id == WeightsId(weights.epoch, weights.version)


# Known failure KF-WIRE-01.
@pytest.mark.parametrize("size", [0, 1, 2**20, 101 * 2**20])
def test_arrays_below_the_limit_arrive(size: int) -> None:
    received = round_trip(np.full(size, 7, np.uint8))
    assert received.shape == (size,)
    assert received.dtype == np.uint8
    assert (received == 7).all()


@pytest.mark.parametrize("size", [MAX_PAYLOAD_BYTES + 1, 2**31 + 1])
def test_an_array_above_the_limit_is_refused_by_the_sender_without_a_copy(size: int) -> None:
    huge = np.broadcast_to(np.uint8(0), (size,))
    with pytest.raises(WireError, match=str(MAX_PAYLOAD_BYTES)) as caught:
        round_trip(huge)
    assert caught.value.reason == "size"


def test_a_payload_above_the_limit_is_refused_by_the_receiver_unread() -> None:
    with pytest.raises(WireError) as caught:
        decode_rollout(bytes(MAX_PAYLOAD_BYTES + 2**17), SPEC)
    assert caught.value.reason == "size"


def test_weights_of_two_hundred_arrays_arrive() -> None:
    arrays = {f"policy.{index}.weight": np.full((8, 8), index, np.float32) for index in range(200)}
    decoded = decode_weights(encode_weights(replace(make_weights(make_spec()), arrays=arrays)))
    assert [int(array[0, 0]) for array in decoded.arrays.values()] == list(range(200))


# Known failure KF-WIRE-04, the sender.
@pytest.mark.parametrize(
    "array",
    [
        np.array([None, {}], dtype=object),
        np.array(["a"]),
        np.array([b"a"]),
        np.zeros(2, np.complex64),
        np.zeros(2, np.float16),
        np.zeros(2, np.uint64),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, [("a", "f4"), ("b", "O")]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_of_a_dtype_that_does_not_travel_is_refused_by_the_sender_by_name(array: Array) -> None:
    with pytest.raises(WireError, match="observations") as caught:
        round_trip(array)
    assert caught.value.reason == "dtype"


# Known failure KF-WIRE-06.
@pytest.mark.parametrize(
    "payload",
    [encode_rollout(make_rollout(SPEC)), encode_weights(make_weights(SPEC))],
    ids=["rollout", "weights"],
)
def test_the_schema_number_stands_first_in_each_message(payload: bytes) -> None:
    assert next(iter(msgpack.unpackb(payload).items())) == ("schema", WIRE_SCHEMA)
    assert payload[1:9] == b"\xa6schema" + bytes([WIRE_SCHEMA])


def test_the_checksum_is_crc_32() -> None:
    assert checksum(b"123456789") == 0xCBF43926
    assert checksum(b"") == 0


@pytest.mark.parametrize("name", GOLDEN_ROLLOUTS)
def test_a_rollout_of_this_schema_is_read_as_it_was_meant(name: str) -> None:
    spec, rollout = GOLDEN_ROLLOUTS[name]
    decoded = decode_rollout((GOLDEN / f"{name}_schema2.msgpack").read_bytes(), spec)
    for array in ARRAY_NAMES:
        assert_same(getattr(decoded, array), getattr(rollout, array))
    validate(decoded, spec)
    assert decoded.rewards[0].tolist() == [-2.5, -1.5, -0.5]
    assert decoded.steps == 5


def test_the_rows_of_the_golden_files_are_what_they_were() -> None:
    """Two of them by hand, as files and values might change together."""
    plain, fields = (
        decode_rollout((GOLDEN / f"{name}_schema2.msgpack").read_bytes(), GOLDEN_ROLLOUTS[name][0])
        for name in ("rollout", "rollout_of_fields")
    )
    assert plain.observations[1, 2].tolist() == [5, -1.25]
    row = fields.observations[1, 2]
    assert row["zoom"].tolist() == [5, -1.25]
    assert row["arm.0"].tolist() == [2]
    assert row["flags"].tolist() == [1, 0]
    assert row["camera"].tolist() == [[50, 51], [52, 53]]
    action = fields.actions[1, 2]
    assert (action["categories"].tolist(), action["values"].tolist()) == ([1, 2], [2.5])


def test_weights_of_this_schema_are_read_as_they_were_meant() -> None:
    decoded = decode_weights((GOLDEN / "weights_schema2.msgpack").read_bytes())
    assert replace(decoded, arrays={}) == replace(GOLDEN_WEIGHTS, arrays={})
    for name, array in GOLDEN_WEIGHTS.arrays.items():
        assert_same(decoded.arrays[name], array)
    assert decoded.arrays["policy.0.weight"].tolist() == [[-0.25, 0], [0.25, 0.5]]


def test_this_release_still_writes_what_the_first_one_of_its_schema_did() -> None:
    """Actors of that release and learners of this one share runs, and the other way round."""
    for name, payload in golden_payloads().items():
        assert payload == (GOLDEN / name).read_bytes(), name


# Known failure KF-WIRE-06.
def test_messages_of_the_first_schema_are_refused_with_the_order_of_upgrades() -> None:
    for name, decode in (
        ("rollout_schema1.msgpack", lambda payload: decode_rollout(payload, SPEC)),
        ("weights_schema1.msgpack", decode_weights),
    ):
        with pytest.raises(WireError, match="format 1, this release reads 2: upgrade the learner") as caught:
            decode((GOLDEN / name).read_bytes())
        assert caught.value.reason == "schema"
