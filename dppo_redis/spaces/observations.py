"""Describes observation spaces as plain frozen values, and packs observations into rows for the wire.

`gymnasium_spaces.py` makes the descriptions. A space is a list of named fields in a fixed order, so that no
order of keys can swap two features. A row is one numpy item. With one field it has the field's dtype and
shape; with more it has a structured dtype with one member for each field.
"""

import dataclasses
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Kind = Literal["vector", "image", "binary", "categories", "mask"]
Path = tuple[str | int, ...]

_WIRE_DTYPES = {"image": np.uint8, "binary": np.uint8, "mask": np.uint8, "categories": np.int32}
BYTES = ("uint8", "bool")


def all_finite(numbers: Array) -> bool:
    """The same as np.isfinite(numbers).all() for any shape, in half the time for small arrays."""
    return int(np.count_nonzero(np.isfinite(numbers))) == numbers.size


@dataclass(frozen=True)
class Field:
    """One named part of an observation."""

    path: Path  # keys and indices that lead to it; () is the observation itself
    kind: Kind
    shape: tuple[int, ...]  # on the wire: [size]; an image keeps the environment's axes
    dtype: str  # of the environment
    sizes: tuple[int, ...] = ()  # of categories: how many there are
    starts: tuple[int, ...] = ()  # of categories: the number of the first one in the environment
    high: float = 1.0  # of an image: what becomes 1.0
    # The environment's own axes; None where a file of an earlier release did not keep them. No part of a
    # spec: its text and its digest stay as they are.
    own_shape: tuple[int, ...] | None = dataclasses.field(default=None, compare=False)

    @property
    def name(self) -> str:
        """`position`, or `robot.arm.0` for a nested field."""
        return ".".join(map(str, self.path)) or "observation"

    @property
    def environment_shape(self) -> tuple[int, ...]:
        """The environment's axes; if they are not known, the axes on the wire."""
        return self.shape if self.own_shape is None else self.own_shape

    @cached_property
    def wire_dtype(self) -> np.dtype[Any]:
        """Bytes stay bytes; every other number travels as float32, a category as its index from 0."""
        if self.kind == "vector":
            return np.dtype(np.uint8 if self.dtype in BYTES else np.float32)
        return np.dtype(_WIRE_DTYPES[self.kind])

    @property
    def features(self) -> int:
        """How many numbers of the vector input this field fills; 0 for images and masks."""
        if self.kind == "categories":
            return sum(self.sizes)
        return math.prod(self.shape) if self.kind in ("vector", "binary") else 0

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width); a picture of two axes has one channel."""
        if len(self.shape) == 2:
            return (1, *self.shape)
        first, middle, last = self.shape
        return (first, middle, last) if self.channels_first else (last, first, middle)

    @property
    def channels_first(self) -> bool:
        """Whether the first axis holds the channels; otherwise the last one does.

        If exactly two neighbouring axes are equal, they are a square picture, and the other axis holds the
        channels. Else the shorter one of first and last axis holds them.
        """
        if len(self.shape) == 2:
            return True
        first, middle, last = self.shape
        if (first == middle) != (middle == last):
            return middle == last
        return first < last

    def read(self, observation: Any, lead: tuple[int, ...]) -> Array:
        """The field of an observation of the environment, [*lead, *shape]."""
        value = observation
        for step in self.path:
            value = value[step]
        array = np.asarray(value)
        if self.starts:
            array = array.reshape(*lead, *self.shape) - np.asarray(self.starts)
        return array.astype(self.wire_dtype, copy=False).reshape(*lead, *self.shape)


@dataclass(frozen=True)
class ObservationSpec:
    """The fields of a row of observations, in their order."""

    fields: tuple[Field, ...]

    @staticmethod
    def vector(size: int, dtype: str = "float32") -> "ObservationSpec":
        """A plain vector."""
        return ObservationSpec((Field((), "vector", (size,), dtype),))

    @property
    def is_plain(self) -> bool:
        """Whether a row is one field and nothing else."""
        return len(self.fields) == 1

    @cached_property
    def is_floats(self) -> bool:
        """Whether a row is a plain vector of float32, which a network reads without conversion."""
        return self.is_plain and self.fields[0].kind == "vector" and self.row_dtype == np.float32

    @cached_property
    def row_dtype(self) -> np.dtype[Any]:
        if self.is_plain:
            return self.fields[0].wire_dtype
        return np.dtype([(field.name, field.wire_dtype, field.shape) for field in self.fields])

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        return self.fields[0].shape if self.is_plain else ()

    @property
    def row_bytes(self) -> int:
        return self.row_dtype.itemsize * math.prod(self.row_shape)

    @cached_property
    def moments(self) -> int:
        """How many features the normaliser keeps statistics of: the vectors, which come first."""
        return sum(field.features for field in self.fields if field.kind == "vector")

    @cached_property
    def size(self) -> int:
        """Number of features of one row, without images and masks."""
        return sum(field.features for field in self.fields)

    @property
    def images(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.kind == "image")

    @property
    def masked(self) -> bool:
        """Whether rows say which actions are allowed."""
        return any(field.kind == "mask" for field in self.fields)

    def pack(self, observation: Any, lead: tuple[int, ...] = ()) -> Array:
        """Pack observations of the environment into rows [*lead, *row_shape]."""
        if self.is_floats and not self.fields[0].path:
            return np.asarray(observation, np.float32).reshape(*lead, *self.row_shape)
        if self.is_plain:
            return self.fields[0].read(observation, lead)
        rows = np.empty(lead, self.row_dtype)
        for field in self.fields:
            rows[field.name] = field.read(observation, lead)
        return rows

    def part(self, rows: Array, field: Field) -> Array:
        """One field of rows, [..., *field.shape]; a view."""
        part: Array = rows if self.is_plain else rows[field.name]
        return part

    def nonfinite(self, rows: Array) -> str | None:
        """Name of the first field of `rows` [..., *row_shape] with a number that is not finite."""
        for field in self.fields:
            if field.wire_dtype.kind == "f" and not all_finite(self.part(rows, field)):
                return field.name
        return None

    def outside(self, rows: Array) -> str | None:
        """Name of the first field of `rows` [..., *row_shape] with a category or flag outside its space."""
        for field in self.fields:
            part = self.part(rows, field)
            if field.kind == "categories" and not ((part >= 0) & (part < np.asarray(field.sizes))).all():
                return field.name
            if field.kind in ("binary", "mask") and (part > 1).any():
                return field.name
        return None

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values of the form on the wire, without the environment's own axes."""
        return [
            {name: value for name, value in asdict(field).items() if name != "own_shape"}
            for field in self.fields
        ]

    @staticmethod
    def from_json(values: list[dict[str, Any]]) -> "ObservationSpec":
        """Inverse of `to_json`."""
        lists = ("path", "shape", "sizes", "starts")
        return ObservationSpec(
            tuple(Field(**{**field, **{name: tuple(field[name]) for name in lists}}) for field in values)
        )
