"""Encodes rollouts and weights as bytes, and decodes them. The only user of msgpack.

It uses no socket, clock or Redis. A message is one msgpack map: `schema` first, then named values. An array
is [dtype code, shape, bytes] in native little-endian C order. Its dtype is from a fixed list and nothing is
pickled, so that no byte from outside runs as code. Rows of several fields travel as bytes; the run's spec
says their fields. All damage raises a `WireError`.
"""

import hashlib
import reprlib
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import msgpack
import numpy as np

from dppo_redis.errors import WireError
from dppo_redis.protocol.config import MAX_PAYLOAD_BYTES as MAX_PAYLOAD_BYTES
from dppo_redis.protocol.rollout import ARRAY_NAMES, OBSERVATION_NAMES, Rollout
from dppo_redis.protocol.spec import WIRE_SCHEMA, Spec
from dppo_redis.protocol.weights import Weights
from dppo_redis.spaces.episode_metrics import METRICS
from dppo_redis.spaces.observations import Array, all_finite

try:  # the same checksum, in a tenth of zlib's time
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor
    from zlib import crc32

MAX_ARRAYS = 1024
MAX_DIMENSIONS = 8
_MOST_ROLLOUT_ARRAYS = 64
_DTYPES: dict[str, np.dtype[Any]] = {
    "f4": np.dtype("<f4"),
    "f8": np.dtype("<f8"),
    "i4": np.dtype("<i4"),
    "i8": np.dtype("<i8"),
    "u1": np.dtype("u1"),
    "b1": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
# msgpack raises seven kinds of exception for damaged input. All of them mean the same here.
_DAMAGED = (ValueError, TypeError, OverflowError, MemoryError, RecursionError, msgpack.UnpackException)
Pieces = list[tuple[bytes, Array]]  # of a message: each array's numbers, and the bytes before them

assert sys.byteorder == "little", "the wire format is little-endian"


def encode_rollout(rollout: Rollout) -> bytes:
    """Pack a rollout's arrays, and its metrics, if it has some, as a message of their own.

    Each array is copied once. Releases that do not know metrics ignore their message.

    Raises:
        WireError: an array of a dtype that does not travel, or a payload above the limit.
    """
    return b"".join(chain.from_iterable(cast(Any, rollout_pieces(rollout))))


def rollout_pieces(rollout: Rollout) -> Pieces:
    """The pieces of an encoded rollout, one for each array: those of its metrics, then `ARRAY_NAMES`.

    Raises:
        WireError: an array of a dtype that does not travel, or a payload above the limit.
    """
    arrays = {name: getattr(rollout, name) for name in ARRAY_NAMES}
    if not rollout.metrics:
        return _pieces(_head(2), arrays)
    (before, first), *others = metrics = _pieces(_head(2), rollout.metrics)
    size = sum(len(head) + array.nbytes for head, array in metrics)
    before = _head(3) + msgpack.packb(METRICS) + _length(size) + before
    return [(before, first), *others, *_pieces(b"", arrays)]


def decode_rollout(payload: bytes, spec: Spec) -> Rollout:
    """Unpack a rollout; its arrays are read-only views of `payload`. Values are not checked here.

    Raises:
        WireError: reason `schema` or `undecodable`.
    """
    arrays, others = _unpack(payload, most_arrays=_MOST_ROLLOUT_ARRAYS)
    if set(arrays) != set(ARRAY_NAMES):
        raise WireError("undecodable", f"a rollout has other arrays than {sorted(arrays)}")
    for name in OBSERVATION_NAMES:
        arrays[name] = _as_rows(arrays[name], spec.observation.row_dtype)
    arrays["actions"] = _as_rows(arrays["actions"], spec.action.wire_dtype)
    metrics = others.get(METRICS)
    if metrics is None:
        return Rollout(**arrays)
    if not isinstance(metrics, bytes):
        raise WireError("undecodable", "metrics that are no message of ours")
    return Rollout(**arrays, metrics=_unpack(metrics, most_arrays=_MOST_ROLLOUT_ARRAYS)[0])


def _as_rows(array: Array, dtype: np.dtype[Any]) -> Array:
    """View bytes [..., B] as rows [...] of several fields; other arrays stay as they are."""
    if dtype.names is None or array.dtype != np.uint8 or array.shape[-1:] != (dtype.itemsize,):
        return array
    return array.view(dtype)[..., 0]


_WEIGHTS_SCALARS = {  # stored name -> field of `Weights`
    **{name: name for name in ("epoch", "version", "update", "trained_steps")},
    "env_steps": "settled_steps",
    "spec": "spec",
}


def encode_weights(weights: Weights) -> bytes:
    """Pack a publication; the bytes repeat its epoch and version.

    Raises:
        WireError: reason `size`, `shape` or `dtype`: an array that the format cannot hold.
    """
    scalars = [(name, getattr(weights, field)) for name, field in _WEIGHTS_SCALARS.items()]
    before = _head(2 + len(scalars)) + b"".join(msgpack.packb(part) for pair in scalars for part in pair)
    return b"".join(chain.from_iterable(cast(Any, _pieces(before, weights.arrays))))


def decode_weights(blob: bytes) -> Weights:
    """Unpack a publication; arrays are read-only views.

    Raises:
        WireError: reason `schema`, `undecodable`, `dtype` or `nonfinite`.
    """
    arrays, scalars = _unpack(blob)
    if set(scalars) != set(_WEIGHTS_SCALARS):
        raise WireError("undecodable", f"weights have other values than {sorted(scalars)}")
    numbers = [scalars[name] for name in _WEIGHTS_SCALARS if name != "spec"]
    if not all(type(x) is int and x >= 0 for x in numbers) or not isinstance(scalars["spec"], str):
        raise WireError("undecodable", "weights whose identity is not numbers and a digest")
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise WireError("dtype", f"weights {name} are {array.dtype}")
        if not all_finite(array):
            raise WireError("nonfinite", f"weights {name}")
    return Weights(**{field: scalars[name] for name, field in _WEIGHTS_SCALARS.items()}, arrays=arrays)


def checksum(payload: bytes) -> int:
    """CRC-32 of a payload, as in the entry's header."""
    return int(crc32(payload))


def sha256(blob: bytes) -> str:
    """Hex SHA-256 of a weights blob, as in the weights hash."""
    return hashlib.sha256(blob).hexdigest()


def _head(values: int) -> bytes:
    """The begin of a message of so many values, which the schema is the first of."""
    return b"".join((bytes([0x80 + values]), msgpack.packb("schema"), msgpack.packb(WIRE_SCHEMA)))


def _length(size: int) -> bytes:
    """msgpack's mark of `size` bytes that follow, as short as may be."""
    width = 1 if size < 2**8 else 2 if size < 2**16 else 4
    return {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[width] + size.to_bytes(width, "big")


def _pieces(before: bytes, arrays: Mapping[str, Array]) -> Pieces:
    """The pieces of a message that ends with these arrays; `before` are the bytes before them."""
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_PAYLOAD_BYTES:
        raise WireError("size", f"{size} bytes of arrays, the limit is {MAX_PAYLOAD_BYTES}")
    if len(arrays) > MAX_ARRAYS:
        raise WireError("size", f"{len(arrays)} arrays, the limit is {MAX_ARRAYS}")
    before += msgpack.packb("arrays") + msgpack.Packer().pack_map_header(len(arrays))
    pieces: Pieces = []
    for name, array in arrays.items():
        code, shape, numbers = _as_numbers(name, array)
        pieces.append((before + _array_head(name, code, shape, numbers.nbytes), numbers))
        before = b""
    return pieces or [(before, np.empty(0, np.uint8))]


@lru_cache(maxsize=1024)
def _array_head(name: str, code: str, shape: tuple[int, ...], size: int) -> bytes:
    """The bytes before the numbers of an array."""
    parts = (msgpack.packb(name), b"\x93", msgpack.packb(code), msgpack.packb(shape), _length(size))
    return b"".join(parts)


def _as_numbers(name: str, array: Array) -> tuple[str, tuple[int, ...], Array]:
    """Code, shape, and the array as the wire has it: the array itself, unless its order or dtype differs."""
    if array.ndim > MAX_DIMENSIONS:
        raise WireError("shape", f"{name} has {array.ndim} dimensions, the limit is {MAX_DIMENSIONS}")
    shape, dtype = array.shape, array.dtype
    if not (array.flags.c_contiguous and dtype.isnative):
        array = np.ascontiguousarray(array, dtype.newbyteorder("="))
        dtype = array.dtype
    if dtype.names is not None and not dtype.hasobject:
        shape, dtype = (*shape, dtype.itemsize), np.dtype(np.uint8)
    code = _CODES.get(dtype)
    if code is None:
        raise WireError("dtype", f"{name} is {array.dtype}, which the wire format does not have")
    return code, shape, array


def _unpack(payload: bytes, most_arrays: int = MAX_ARRAYS) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and scalars of a message."""
    if len(payload) > MAX_PAYLOAD_BYTES + 65_536:
        raise WireError("size", f"{len(payload)} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    # An array has a name and two lists. The message has some more names.
    strict = _Strict(most_parts=3 * most_arrays + 16)
    try:
        message = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=strict.map,
            list_hook=strict.list,
            ext_hook=_refuse_extension,
            max_str_len=256,
            max_array_len=MAX_DIMENSIONS,
            max_map_len=most_arrays,
            max_ext_len=0,
            max_bin_len=MAX_PAYLOAD_BYTES,
        )
    except _DAMAGED as error:
        raise WireError("undecodable", f"{type(error).__name__}: {error}") from error
    if not isinstance(message, dict) or "schema" not in message:
        raise WireError("schema", "not one of our messages")
    schema = message.pop("schema")
    if type(schema) is not int or schema != WIRE_SCHEMA:
        raise WireError(
            "schema",
            f"format {reprlib.repr(schema)}, this release reads {WIRE_SCHEMA}: "
            "upgrade the learner before its actors",
        )
    packed = message.pop("arrays", None)
    if not isinstance(packed, dict):
        raise WireError("undecodable", "no arrays")
    return {name: _unpack_array(name, value) for name, value in packed.items()}, message


def _unpack_array(name: str, value: Any) -> Array:
    if not isinstance(value, list) or len(value) != 3:
        raise WireError("undecodable", f"{name} is not an array")
    code, shape, buffer = value
    dtype = _DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise WireError("dtype", f"{name} has the unknown dtype {reprlib.repr(code)}")
    if not isinstance(shape, list) or not isinstance(buffer, bytes):
        raise WireError("undecodable", f"{name} is not an array")
    size = extents = 1
    for extent in shape:  # one plain loop: this runs for each array of each rollout
        if type(extent) is not int or not 0 <= extent <= MAX_PAYLOAD_BYTES:
            raise WireError("undecodable", f"{name} has the shape {reprlib.repr(shape)}")
        size *= extent
        extents *= extent or 1
    if size * dtype.itemsize != len(buffer):
        raise WireError("undecodable", f"{name} has {len(buffer)} bytes for shape {shape}")
    if extents > MAX_PAYLOAD_BYTES:
        raise WireError("undecodable", f"{name} has the shape {shape}")
    if code == "b1" and buffer.translate(None, b"\x00\x01"):
        raise WireError("undecodable", f"{name} has flags that are neither 0 nor 1")
    return np.ndarray(shape, dtype, buffer)


class _Strict:
    """Refuses messages of another form than ours: few containers, few values, unique names that are text.

    It counts values. They take up to sixty times their bytes in memory, and a hundred times as long to decode
    as the same bytes of an array.
    """

    def __init__(self, most_parts: int) -> None:
        self._most_parts = most_parts
        self._parts = 0

    def list(self, items: list[Any]) -> list[Any]:
        self._count(1)
        return items

    def map(self, pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        items = list(pairs)
        self._count(1 + len(items))
        result = dict(items)
        if any(type(name) is not str for name in result):
            raise WireError("undecodable", "a name is not text")
        if len(result) != len(items):
            raise WireError("undecodable", "a name occurs twice")
        return result

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > self._most_parts:
            raise WireError("undecodable", "more lists, maps and names than a message of ours has")


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise WireError("undecodable", f"extension type {code}")
