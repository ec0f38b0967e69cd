"""A decoder that knows a layout gives the same results as a new decoder."""

from dataclasses import replace

import msgpack
import numpy as np
import pytest

from dppo_redis.errors import WireError
from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, encode_rollout, rollout_pieces
from learner.intake.decoder import RolloutDecoder
from tests.factories import box, make_rollout, make_spec
from tests.unit.protocol.test_wire_damage import NAMED, SPEC

SPECS = pytest.mark.parametrize(
    "spec", [SPEC, NAMED, make_spec(action=box())], ids=["plain", "fields", "box"]
)


def example(spec: Spec, ends: int = 1) -> Rollout:
    return make_rollout(spec, count=2, terminated=[(t, 0) for t in range(ends)])


def warm(spec: Spec) -> RolloutDecoder:
    decoder = RolloutDecoder(spec)
    decoder.decode(encode_rollout(example(spec)))
    return decoder


def verdict(payload: bytes, spec: Spec, decoder: RolloutDecoder | None) -> tuple[str, ...] | list[bytes]:
    """The bytes of the arrays, or the reason of the refusal."""
    try:
        if decoder is not None:
            rollout = decoder.decode(payload)
        else:
            rollout = decode_rollout(payload, spec)
            validate(rollout, spec)
    except WireError as error:
        return error.reason, str(error)
    arrays = [getattr(rollout, name) for name in ARRAY_NAMES]
    assert not any(array.flags.writeable for array in arrays)
    return [f"{array.dtype}{array.shape}".encode() + array.tobytes() for array in arrays]


@SPECS
def test_for_any_damaged_byte_decoder_and_parser_agree(spec: Spec) -> None:
    payload, decoder = encode_rollout(example(spec)), warm(spec)
    for place in range(len(payload)):
        for change in (0x01, 0x02, 0x80, 0xFF):
            damaged = bytearray(payload)
            damaged[place] ^= change
            assert verdict(bytes(damaged), spec, decoder) == verdict(bytes(damaged), spec, None)


@SPECS
def test_a_payload_that_is_cut_or_continued_is_refused_by_both(spec: Spec) -> None:
    payload, decoder = encode_rollout(example(spec)), warm(spec)
    for changed in (payload[:-1], payload + b"\x00", payload[1:] + b"\x00", b""):
        assert verdict(changed, spec, decoder) == verdict(changed, spec, None)
        assert len(verdict(changed, spec, decoder)) == 2


@SPECS
def test_other_numbers_and_other_counts_of_ends_arrive_as_they_were_sent(spec: Spec) -> None:
    decoder = warm(spec)
    for ends in (2, 0, 1, 2):
        rollout = example(spec, ends)
        rollout = replace(rollout, rewards=rollout.rewards + ends, valid=np.ones_like(rollout.valid))
        payload = encode_rollout(rollout)
        assert verdict(payload, spec, decoder) == verdict(payload, spec, None)
        np.testing.assert_array_equal(decoder.decode(payload).rewards, rollout.rewards)


def test_an_end_that_the_other_arrays_do_not_know_of_is_refused_by_both() -> None:
    rollout = example(SPEC)
    moved = replace(rollout, terminated=np.ones_like(rollout.terminated))
    for flags in (moved, replace(rollout, terminated=np.zeros_like(rollout.terminated))):
        payload = encode_rollout(flags)
        found = verdict(payload, SPEC, warm(SPEC))
        assert found == verdict(payload, SPEC, None)
        assert found[0] == "shape"


def test_a_message_packed_in_another_way_is_read_by_the_parser_each_time() -> None:
    """As another library may: a length in more bytes than it needs."""
    payload = encode_rollout(example(SPEC))
    arrays = payload.index(b"\xa6arrays") + len(b"\xa6arrays")
    assert payload[arrays] == 0x80 + len(ARRAY_NAMES)
    other = payload[:arrays] + b"\xde\x00" + bytes([len(ARRAY_NAMES)]) + payload[arrays + 1 :]
    assert msgpack.unpackb(other) == msgpack.unpackb(payload)
    decoder = RolloutDecoder(SPEC)
    for _ in range(2):
        assert verdict(other, SPEC, decoder) == verdict(payload, SPEC, None)


def test_more_layouts_than_are_kept_do_no_harm() -> None:
    spec = make_spec(rollout_steps=100)
    decoder = RolloutDecoder(spec)
    for ends in [*range(80), *range(80)]:
        rollout = example(spec, ends)
        np.testing.assert_array_equal(decoder.decode(encode_rollout(rollout)).terminated, rollout.terminated)


@SPECS
def test_the_pieces_together_are_the_payload(spec: Spec) -> None:
    rollout = example(spec)
    pieces = rollout_pieces(rollout)
    assert b"".join(before + numbers.tobytes() for before, numbers in pieces) == encode_rollout(rollout)
    for (_, numbers), name in zip(pieces, ARRAY_NAMES, strict=True):
        np.testing.assert_array_equal(numbers, getattr(rollout, name))
