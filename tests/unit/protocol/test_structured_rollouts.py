"""Damaged rollouts whose rows have several fields."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from dppo_redis.errors import WireError
from dppo_redis.protocol.rollout import OBSERVATION_NAMES, Rollout, validate
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.spaces.observations import Array
from tests.factories import make_rollout
from tests.unit.playing import LSTM, spec_of

SPEC = spec_of("Everything", network=LSTM, frame_stack=2)
NAMES = pytest.mark.parametrize("name", OBSERVATION_NAMES)
FIRST: dict[str, tuple[int, ...]] = {
    "observations": (3, 1),
    "final_observations": (0,),
    "last_observations": (1,),
    "frames_before": (1, 0),
}


def good() -> Rollout:
    return make_rollout(SPEC, terminated=[(1, 0)], truncated=[(2, 1)], invalid=[(2, 0)])


def refusal(rollout: Rollout) -> WireError:
    """Of a rollout that has crossed the wire."""
    with pytest.raises(WireError) as caught:
        validate(decode_rollout(encode_rollout(rollout), SPEC), SPEC)
    return caught.value


def message(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The bytes of a good rollout with its arrays changed."""
    values = msgpack.unpackb(encode_rollout(good()))
    change(values["arrays"])
    return bytes(msgpack.packb(values))


def refused(payload: bytes) -> str:
    with pytest.raises(WireError) as caught:
        validate(decode_rollout(payload, SPEC), SPEC)
    return caught.value.reason


def test_the_rollout_that_these_tests_damage_is_a_good_one() -> None:
    validate(decode_rollout(message(lambda _: None), SPEC), SPEC)


@NAMES
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("part", ["observation.zoom", "observation.arm.1"])
def test_a_number_that_is_not_finite_is_refused_by_array_and_field(
    name: str, part: str, value: float
) -> None:
    rollout = good()
    getattr(rollout, name)[part][(*FIRST[name], 1)] = value
    error = refusal(rollout)
    assert error.reason == "nonfinite"
    assert f"{name} {part}" in str(error)


@NAMES
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("observation.arm.0", 3),
        ("observation.arm.0", -1),
        ("observation.arm.0", 2**31 - 1),
        ("observation.flags", 2),
        ("observation.flags", 255),
        ("action_mask", 2),
    ],
)
def test_a_category_or_flag_outside_its_space_is_refused_by_array_and_field(
    name: str, part: str, value: int
) -> None:
    rollout = good()
    getattr(rollout, name)[part][(*FIRST[name], 0)] = value
    error = refusal(rollout)
    assert error.reason == "observation"
    assert f"{name} {part}" in str(error)


def test_an_image_may_hold_any_byte() -> None:
    rollout = good()
    rollout.observations["observation.camera"] = 255
    validate(rollout, SPEC)


@pytest.mark.parametrize("name", [*OBSERVATION_NAMES, "actions"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda a: a[:-1], id="one less"),
        pytest.param(lambda a: np.concatenate([a, a[:1]]), id="one more"),
        pytest.param(lambda a: a[..., None], id="one dimension more"),
        pytest.param(lambda a: a[:0], id="empty"),
        pytest.param(lambda a: a.reshape(-1)[:1].reshape([1] * a.ndim), id="would broadcast"),
    ],
)
def test_rows_of_another_shape_are_refused(name: str, change: Callable[[Array], Array]) -> None:
    rollout = good()
    error = refusal(replace(rollout, **{name: change(getattr(rollout, name))}))
    assert error.reason == "shape"
    assert name in str(error)


@pytest.mark.parametrize("name", [*OBSERVATION_NAMES, "actions"])
def test_rows_of_other_fields_are_refused(name: str) -> None:
    """Of one byte more, of one less, with the fields in another order, and plain numbers."""
    rollout = good()
    array = getattr(rollout, name)
    longer = np.dtype([*((n, array.dtype[n]) for n in array.dtype.names), ("more", "u1")])
    shorter = np.dtype([(n, array.dtype[n]) for n in array.dtype.names[1:]])
    for dtype in (longer, shorter, np.dtype("f4"), np.dtype("u1"), np.dtype("i8")):
        error = refusal(replace(rollout, **{name: np.zeros(array.shape, dtype)}))
        assert error.reason in ("dtype", "shape")
        assert name in str(error)


@pytest.mark.parametrize("name", [*OBSERVATION_NAMES, "actions"])
@pytest.mark.parametrize("code", ["f4", "f8", "i4", "i8", "b1"])
def test_bytes_that_claim_to_be_numbers_are_refused(name: str, code: str) -> None:
    def lie(arrays: dict[str, Any]) -> None:
        _, shape, buffer = arrays[name]
        size = np.dtype(code.replace("b1", "?")).itemsize
        whole = bytes(len(buffer) * size)
        arrays[name] = [code, shape, whole]

    assert refused(message(lie)) == "dtype"


@pytest.mark.parametrize("name", [*OBSERVATION_NAMES, "actions"])
@pytest.mark.parametrize("by", [-1, 1, 7])
def test_a_shape_that_lies_about_the_bytes_is_refused(name: str, by: int) -> None:
    def lie(arrays: dict[str, Any]) -> None:
        code, shape, buffer = arrays[name]
        arrays[name] = [code, [*shape[:-1], shape[-1] + by], buffer]

    assert refused(message(lie)) == "undecodable"


@pytest.mark.parametrize("name", [*OBSERVATION_NAMES, "actions"])
def test_the_same_bytes_in_rows_of_another_length_are_refused(name: str) -> None:
    def lie(arrays: dict[str, Any]) -> None:
        code, _, buffer = arrays[name]
        arrays[name] = [code, [len(buffer)], buffer]

    assert refused(message(lie)) in ("dtype", "shape")


def test_a_state_of_another_size_is_refused() -> None:
    error = refusal(replace(good(), memory=np.zeros((2, 4), np.float32)))
    assert error.reason == "shape"
    assert "memory" in str(error)


@pytest.mark.parametrize("place", [(0, 0), (1, 7)])
def test_a_state_that_is_not_finite_is_refused(place: tuple[int, int]) -> None:
    rollout = good()
    rollout.memory[place] = np.nan
    assert str(refusal(rollout)) == "nonfinite: memory"


def test_more_frames_than_the_spec_says_are_refused() -> None:
    rollout = good()
    error = refusal(replace(rollout, frames_before=np.repeat(rollout.frames_before, 2, axis=1)))
    assert error.reason == "shape"
    assert "frames_before" in str(error)
