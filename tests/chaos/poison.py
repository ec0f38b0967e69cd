"""Hostile entries, made from a good one: each must be refused with a reason and hurt nobody."""

import random
import secrets
from collections.abc import Callable
from typing import Any

import msgpack

from dppo_redis.protocol.wire import checksum

Entry = dict[bytes, bytes]
Poison = Callable[[Entry, random.Random], Entry]


def _with(entry: Entry, payload: bytes) -> Entry:
    """The entry with another payload and a header that fits it."""
    return {**entry, b"payload": payload, b"crc": b"%d" % checksum(payload)}


def _random_bytes(entry: Entry, rng: random.Random) -> Entry:
    return _with(entry, rng.randbytes(rng.randrange(2000)))


def _cut_short(entry: Entry, rng: random.Random) -> Entry:
    return _with(entry, entry[b"payload"][: rng.randrange(len(entry[b"payload"]))])


def _flipped(entry: Entry, rng: random.Random) -> Entry:
    """One byte differs; the checksum is that of the good one."""
    damaged = bytearray(entry[b"payload"])
    damaged[rng.randrange(len(damaged))] ^= 1 + rng.randrange(255)
    return {**entry, b"payload": bytes(damaged)}


def _nested(entry: Entry, rng: random.Random) -> Entry:
    return _with(entry, b"\x91" * rng.randrange(1000, 100_000))


def _with_array(entry: Entry, name: str, array: list[Any]) -> Entry:
    """One array differs, and nothing else."""
    message = msgpack.unpackb(entry[b"payload"])
    message["arrays"][name] = array
    return _with(entry, msgpack.packb(message))


def _lying_about_size(entry: Entry, rng: random.Random) -> Entry:
    return _with_array(entry, "rewards", ["f4", [2**20, 2**20, 1 + rng.randrange(9)], b""])


def _other_type(entry: Entry, _rng: random.Random) -> Entry:
    return _with_array(entry, "rewards", ["O", [1], b"pickle"])


def _not_finite(entry: Entry, _rng: random.Random) -> Entry:
    dtype, shape, numbers = msgpack.unpackb(entry[b"payload"])["arrays"]["rewards"]
    return _with_array(entry, "rewards", [dtype, shape, b"\xff" * 4 + numbers[4:]])


def _without_a_field(entry: Entry, rng: random.Random) -> Entry:
    gone = rng.choice(sorted(entry))
    return {name: value for name, value in entry.items() if name != gone} or {b"x": b""}


def _absurd_numbers(entry: Entry, rng: random.Random) -> Entry:
    name = rng.choice([b"seq", b"epoch", b"update", b"steps", b"crc"])
    return {**entry, name: rng.choice([b"-1", b"9" * 40, b"nan", b"", b"\xff\x00"])}


def _of_another_run(entry: Entry, _rng: random.Random) -> Entry:
    return {**entry, b"spec": b"0123456789abcdef"}


POISONS: tuple[Poison, ...] = (
    _random_bytes, _cut_short, _flipped, _nested, _lying_about_size, _other_type, _not_finite,
    _without_a_field, _absurd_numbers, _of_another_run,
)  # fmt: skip


def poisoned(entry: Entry, rng: random.Random) -> list[Entry]:
    """One entry of each kind, each of an actor of its own."""
    own = {name: value for name, value in entry.items() if name != b"boot"}
    return [poison({**own, b"boot": secrets.token_hex(8).encode()}, rng) for poison in POISONS]
