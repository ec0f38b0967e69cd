"""Any bytes decode or raise a `WireError`, without executing code or allocating much memory."""

import pickle
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.errors import WireError
from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, validate
from dppo_redis.protocol.spec import WIRE_SCHEMA
from dppo_redis.protocol.wire import decode_rollout, decode_weights, encode_rollout, encode_weights
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from tests.factories import make_rollout, make_spec, make_weights

Decode = Callable[[bytes], Any]
SPEC = make_spec(rollout_steps=2, hidden=(2,))
NAMED = make_spec(
    rollout_steps=2,
    frame_stack=2,
    observation=describe_observations(Dict({"zoom": Box(-1, 1, (2,)), "arm": Discrete(3)})),
    action=describe_actions(Tuple((Discrete(2), Box(-1, 1, (1,))))),
)
ROLLOUT, NAMED_ROLLOUT = (
    encode_rollout(make_rollout(spec, count=1, terminated=[(0, 0)])) for spec in (SPEC, NAMED)
)
WEIGHTS = encode_weights(make_weights(SPEC))


def read_rollout(payload: bytes) -> Rollout:
    """Decode a rollout as the learner does; a `WireError` if it is not one of this run."""
    rollout = decode_rollout(payload, SPEC)
    validate(rollout, SPEC)
    return rollout


def read_named(payload: bytes) -> Rollout:
    """The same in a run whose observations and actions have several fields."""
    rollout = decode_rollout(payload, NAMED)
    validate(rollout, NAMED)
    return rollout


MESSAGES = pytest.mark.parametrize(
    ("payload", "decode"),
    [(ROLLOUT, read_rollout), (NAMED_ROLLOUT, read_named), (WEIGHTS, decode_weights)],
    ids=["rollout", "rollout of fields", "weights"],
)
DECODERS = pytest.mark.parametrize("decode", [read_rollout, decode_weights], ids=["rollout", "weights"])
HEAD = b"\xa6schema" + bytes([WIRE_SCHEMA]) + b"\xa6arrays"
EMPTY = ["f4", [0], b""]


def refusal(payload: bytes, decode: Decode = decode_weights) -> WireError:
    with pytest.raises(WireError) as caught:
        decode(payload)
    assert len(str(caught.value)) < 1000, "the message repeats what was received"
    return caught.value


def decodes_or_is_refused(payload: bytes, decode: Decode) -> None:
    """Any other exception fails the test."""
    with suppress(WireError):
        decode(payload)


def weights_with(**values: Any) -> bytes:
    """A weights message that is right but for `values`; None takes a value away."""
    message = {**msgpack.unpackb(WEIGHTS), **values}
    return packed({name: value for name, value in message.items() if value is not None})


def packed(value: Any) -> bytes:
    result: bytes = msgpack.packb(value)
    return result


def weights_with_array(dtype: Any, shape: Any, buffer: Any) -> bytes:
    return weights_with(arrays={"policy.0.bias": [dtype, shape, buffer]})


def test_the_messages_that_these_tests_damage_are_good_ones() -> None:
    read_rollout(ROLLOUT)
    read_named(NAMED_ROLLOUT)
    decode_weights(weights_with())
    decode_weights(weights_with_array(*EMPTY))


# Known failure KF-WIRE-05.
@MESSAGES
def test_a_payload_cut_anywhere_is_refused(payload: bytes, decode: Decode) -> None:
    for length in range(len(payload)):
        refusal(payload[:length], decode)


@MESSAGES
@pytest.mark.parametrize("extra", [b"\x00", b"\xc1", b"\xff", b"\x80", ROLLOUT, WEIGHTS[:50]])
def test_a_payload_with_bytes_appended_is_refused(payload: bytes, decode: Decode, extra: bytes) -> None:
    refusal(payload + extra, decode)


@MESSAGES
def test_a_payload_with_any_byte_changed_is_refused_or_decodes(payload: bytes, decode: Decode) -> None:
    for place in range(len(payload)):
        for change in (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF):
            changed = bytearray(payload)
            changed[place] ^= change
            decodes_or_is_refused(bytes(changed), decode)


@DECODERS
def test_ten_thousand_random_strings_are_refused(decode: Decode) -> None:
    rng = np.random.default_rng(0)
    for length in rng.integers(0, 65, 10_000):
        refusal(rng.bytes(length), decode)


@DECODERS
@given(tail=st.binary(max_size=80))
def test_anything_behind_the_beginning_of_a_message_is_refused_or_decodes(
    decode: Decode, tail: bytes
) -> None:
    decodes_or_is_refused(b"\x82" + HEAD + tail, decode)
    decodes_or_is_refused(b"\x82" + HEAD + b"\x81\xa1a\x93" + tail, decode)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@DECODERS
@given(value=anything, schema=st.sampled_from([WIRE_SCHEMA, 0, None]))
def test_a_foreign_value_in_any_place_is_refused_or_decodes(decode: Decode, value: Any, schema: Any) -> None:
    for message in (
        value,
        {"schema": schema, "arrays": value},
        {"schema": schema, "arrays": {"a": value}},
        {"schema": schema, "arrays": {"a": ["f4", value, b""]}},
        {"schema": schema, "arrays": {"a": [value, [0], b""]}},
        {"schema": schema, "arrays": {"a": ["f4", [0], value]}},
        {**msgpack.unpackb(WEIGHTS), "version": value},
    ):
        decodes_or_is_refused(packed(message), decode)


@DECODERS
@pytest.mark.parametrize(
    "keys",
    [[b"bytes"], [b"bytes", "text"], [b"bytes", "text", "other"]],
    ids=lambda keys: f"{len(keys)} keys",
)
def test_names_that_are_bytes_are_refused(decode: Decode, keys: list[Any]) -> None:
    refusal(packed({"schema": WIRE_SCHEMA, "arrays": dict.fromkeys(keys, EMPTY)}), decode)
    refusal(packed({"schema": WIRE_SCHEMA, "arrays": {}, **dict.fromkeys(keys, 1)}), decode)


@pytest.mark.parametrize("key", [1, 1.5, True, None], ids=repr)
def test_names_that_are_neither_text_nor_bytes_are_refused(key: Any) -> None:
    assert refusal(packed({**msgpack.unpackb(WEIGHTS), key: 1})).reason == "undecodable"


@pytest.mark.parametrize("where", ["message", "arrays"])
def test_a_name_that_stands_twice_is_refused(where: str) -> None:
    """msgpack alone would silently take the last one."""
    packer = msgpack.Packer()
    twice = packer.pack_map_pairs([("a", EMPTY), ("a", EMPTY)])
    if where == "arrays":
        payload = (
            packer.pack_map_header(2) + packed("schema") + packed(WIRE_SCHEMA) + packed("arrays") + twice
        )
    else:
        pairs = [("schema", WIRE_SCHEMA), *msgpack.unpackb(WEIGHTS).items()]
        payload = packer.pack_map_pairs(pairs)
    error = refusal(payload)
    assert error.reason == "undecodable"
    assert "twice" in str(error)


@pytest.mark.parametrize("code", [-1, 0, 5, 127])
@pytest.mark.parametrize("size", [0, 4, 12, 100])
def test_an_extension_type_is_refused(code: int, size: int) -> None:
    extension = (
        msgpack.Timestamp(1) if code == -1 and size == 4 else msgpack.ExtType(max(code, 0), bytes(size))
    )
    assert refusal(weights_with(update=extension)).reason == "undecodable"
    assert refusal(weights_with_array("f4", [0], extension)).reason == "undecodable"


# Known failure KF-WIRE-04.
EXECUTED: list[str] = []


class Bomb:
    """Its pickle notes that it was opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return EXECUTED.append, ("opened",)


@pytest.mark.parametrize("dtype", ["O", "object", "|O", "O8", "V8", "f2", "S4", "M8", "f4,O", "", "<f4"])
def test_a_payload_that_claims_another_dtype_is_refused_and_never_opened(dtype: str) -> None:
    bomb = pickle.dumps(Bomb())
    error = refusal(weights_with_array(dtype, [len(bomb)], bomb))
    assert error.reason == "dtype"
    assert EXECUTED == []


@pytest.mark.parametrize("dtype", [None, 1, b"f4", ["f4"], {"nd": True}], ids=repr)
def test_a_dtype_that_is_no_text_is_refused(dtype: Any) -> None:
    assert refusal(weights_with_array(dtype, [1], b"abcd")).reason == "dtype"


@pytest.mark.parametrize(
    "shape",
    [
        [2],
        [],
        [1, 2],
        [-1],
        [-1, -1],
        [True],
        [1.0],
        ["1"],
        [None],
        [[1]],
        [2**63],
        [2**62, 4],
        [2**64 - 1],
        [1] * 9,
        1,
        None,
        "1",
        b"\x01",
        {"1": 1},
    ],
    ids=repr,
)
def test_a_shape_that_does_not_fit_the_bytes_is_refused(shape: Any) -> None:
    """One number of four bytes, or none."""
    buffer = b"" if shape == [] else b"abcd"
    assert refusal(weights_with_array("f4", shape, buffer)).reason == "undecodable"


@pytest.mark.parametrize("shape", [[0, 2**63], [2**64 - 1, 0], [0, 2**62], [2**40, 2**40, 0]], ids=repr)
def test_a_shape_that_is_empty_in_one_dimension_and_absurd_in_another_is_refused(shape: list[int]) -> None:
    assert refusal(weights_with_array("f4", shape, b"")).reason == "undecodable"


@pytest.mark.parametrize("value", [None, [], ["f4"], ["f4", [0], b"", 1], {}, "f4", 3], ids=repr)
def test_a_value_that_is_no_array_is_refused(value: Any) -> None:
    assert refusal(weights_with(arrays={"policy.0.bias": value})).reason == "undecodable"


def test_a_flag_that_is_neither_zero_nor_one_is_refused() -> None:
    """numpy would carry it on as a True that is unequal to True."""
    assert refusal(weights_with_array("b1", [3], b"\x00\x01\x02")).reason == "undecodable"


# Known failure KF-WIRE-06.
@DECODERS
@pytest.mark.parametrize("schema", [WIRE_SCHEMA - 1, WIRE_SCHEMA + 1, -1, 2**63, True, 1.0, "1", None, [1]])
def test_another_schema_number_is_refused_with_both_numbers_and_advice(decode: Decode, schema: Any) -> None:
    error = refusal(packed({"schema": schema, "arrays": {}}), decode)
    assert error.reason == "schema"
    assert f"format {schema!r}, this release reads {WIRE_SCHEMA}" in str(error)
    assert "upgrade the learner before its actors" in str(error)


@DECODERS
@pytest.mark.parametrize(
    "message", [{"arrays": {}}, {}, [], None, 1, "schema", ["schema"], b"schema"], ids=repr
)
def test_a_message_without_a_schema_number_is_refused(decode: Decode, message: Any) -> None:
    assert refusal(packed(message), decode).reason == "schema"


@pytest.mark.parametrize(
    "name", ["epoch", "version", "update", "trained_steps", "env_steps", "spec", "arrays"]
)
def test_weights_that_lack_a_value_are_refused(name: str) -> None:
    assert refusal(weights_with(**{name: None})).reason == "undecodable"


def test_weights_with_a_value_that_this_release_does_not_know_are_refused() -> None:
    assert refusal(weights_with(momentum=1)).reason == "undecodable"


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", b"1", [1]], ids=repr)
@pytest.mark.parametrize("name", ["epoch", "version", "update", "trained_steps", "env_steps"])
def test_an_identity_that_is_no_number_is_refused(name: str, value: Any) -> None:
    assert refusal(weights_with(**{name: value})).reason == "undecodable"


def test_a_digest_that_is_no_text_is_refused() -> None:
    assert refusal(weights_with(spec=7)).reason == "undecodable"


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
def test_weights_that_are_not_finite_are_refused_by_name(number: float) -> None:
    error = refusal(weights_with_array("f4", [1], np.float32(number).tobytes()))
    assert error.reason == "nonfinite"
    assert "policy.0.bias" in str(error)


def test_weights_of_another_dtype_are_refused_by_name() -> None:
    error = refusal(weights_with_array("f8", [1], bytes(8)))
    assert error.reason == "dtype"
    assert "policy.0.bias" in str(error)


@pytest.mark.parametrize("name", ARRAY_NAMES)
def test_a_rollout_that_lacks_an_array_or_has_one_more_is_refused(name: str) -> None:
    arrays = msgpack.unpackb(ROLLOUT)["arrays"]
    more = {"schema": WIRE_SCHEMA, "arrays": {**arrays, f"{name}_2": EMPTY}}
    less = {"schema": WIRE_SCHEMA, "arrays": {key: value for key, value in arrays.items() if key != name}}
    assert refusal(packed(more), read_rollout).reason == "undecodable"
    assert refusal(packed(less), read_rollout).reason == "undecodable"


HUGE = {
    "map": b"\xdf\xff\xff\xff\xff",
    "list": b"\xdd\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "bytes below the limit": b"\xc6\x07\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x01",
    "lists in lists": b"\xdd\x00\x00\x00\x40" * 2000,
    "deep lists": b"\x91" * 100_000,
    "deep maps": b"\x81\xa1a" * 100_000,
    "wide lists of nothing": packed([[[[]] * 64] * 64] * 16),
    "wide lists of maps": packed([[[{}] * 64] * 64] * 16),
    "wide lists of numbers": packed([[[2**40] * 64] * 64] * 16),
    "a name of a megabyte": packed({b"x" * 2**20: 1}),
    "a schema of a megabyte": packed({"schema": b"\x00" * 2**20, "arrays": {}}),
}


BEFORE = {
    "alone": b"",
    "as arrays": b"\x82" + HEAD,
    "beside arrays": b"\x83" + HEAD + b"\x80\xa1x",
}


@pytest.mark.parametrize("where", BEFORE)
@pytest.mark.parametrize("name", HUGE)
def test_decoding_takes_a_small_multiple_of_the_input_even_if_it_declares_more(name: str, where: str) -> None:
    payload = BEFORE[where] + HUGE[name]
    tracemalloc.start()
    try:
        refusal(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(payload) + 2**20, "beside half a megabyte that the parser begins with"
