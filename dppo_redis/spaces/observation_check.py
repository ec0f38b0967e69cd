"""Refuses a wrong observation with a clear message, because packing might misread it. Pure."""

import math
from typing import Any

import numpy as np

from dppo_redis.errors import ObservationError
from dppo_redis.spaces.observations import Array, Field, ObservationSpec


def check_observation(spec: ObservationSpec, observation: Any) -> None:
    """Refuse an observation unless it is one of `spec`, in the form in which one environment returns it.

    Raises:
        ObservationError: a part is missing, has another shape, is no number, is not finite, or is a category
            or flag that its space does not have. The message names the part and its right form.
    """
    for field in spec.fields:
        _check_numbers(field, _find(field, observation))
    row = spec.pack(observation)
    name = spec.nonfinite(row)
    if name is not None:
        raise ObservationError(f"{name} holds a number that is not finite")
    name = spec.outside(row)
    if name is not None:
        field = next(field for field in spec.fields if field.name == name)
        raise ObservationError(f"{name} has a value outside its space: expected {_expected(field)}")


def _find(field: Field, observation: Any) -> Any:
    value = observation
    for depth, step in enumerate(field.path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            where = ".".join(map(str, field.path[:depth])) or "the observation"
            raise ObservationError(
                f"{where} is a {type(value).__name__} without a part {step!r}: expected {field.name}, "
                f"{_expected(field)}"
            ) from error
    return value


def _check_numbers(field: Field, value: Any) -> None:
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ObservationError(f"{field.name} is no array: expected {_expected(field)}: {error}") from error
    if array.dtype.kind not in "fiub":
        raise ObservationError(
            f"{field.name} holds no numbers, but {array.dtype}: expected {_expected(field)}"
        )
    if not _fits(field, array):
        raise ObservationError(f"{field.name} has shape {array.shape}: expected {_expected(field)}")
    if _travels_as_bytes(field) and not _holds_bytes(array):
        raise ObservationError(
            f"{field.name} holds {array.dtype} that are no bytes: expected {_expected(field)}, "
            f"each from 0 to 255 and not scaled"
        )


def _travels_as_bytes(field: Field) -> bool:
    return field.kind in ("image", "vector") and field.wire_dtype == np.uint8


def _holds_bytes(array: Array) -> bool:
    """Whether bytes can hold all numbers; pixels that were scaled to 0..1 would all become 0."""
    if array.dtype in (np.uint8, np.bool_):
        return True
    return array.dtype.kind != "f" and bool(((array >= 0) & (array <= 255)).all())


def _fits(field: Field, array: Array) -> bool:
    """Whether an array has the field's axes or, except for an image, as many numbers: these are sent flat."""
    return array.shape == field.shape if field.kind == "image" else array.size == math.prod(field.shape)


def _expected(field: Field) -> str:
    if field.kind == "image":
        return f"an image of shape {field.shape}"
    count = math.prod(field.shape)
    if field.kind == "categories":
        starts = field.starts or (0,) * count
        ranges = [f"{start} to {start + size - 1}" for start, size in zip(starts, field.sizes, strict=True)]
        return f"{_counted(count, 'whole number')}, from {', '.join(ranges)}"
    if field.kind in ("binary", "mask"):
        return f"{_counted(count, 'flag')}, each 0 or 1"
    return _counted(count, "number")


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"
