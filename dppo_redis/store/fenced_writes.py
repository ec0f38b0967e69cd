"""The learner's writes to Redis: five scripts, each of which checks the fencing token first.

Only one caller may run at a time; `learner/leadership/fence.py` holds a lock around each call.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, cast

import redis

from dppo_redis.errors import FencedError
from dppo_redis.protocol.ledger import Settlement
from dppo_redis.protocol.weights import Weights
from dppo_redis.protocol.wire import encode_weights, sha256
from dppo_redis.store.client import Client, OversizeDetector
from dppo_redis.store.keys import GROUP, RunKeys
from dppo_redis.store.run_store import read_lease
from dppo_redis.store.scripts import source

LeaseOutcome = Literal["acquired", "held", "busy", "fenced", "released"]


_LONGEST_STEP = 2**20  # of 2**52 epochs that Lua can count


def epoch_step() -> int:
    """The random distance of a new epoch from the highest known one, so that no epoch is used twice."""
    return 1 + secrets.randbelow(_LONGEST_STEP)


class EpochMissingError(FencedError):
    """The epoch key was deleted or restored to an older value: acquire again, with a higher epoch."""


@dataclass(frozen=True)
class LeaseAnswer:
    """The answer of `acquire`."""

    outcome: LeaseOutcome
    epoch: int
    holder: str
    beat: str | None = None  # another one after each renewal
    value: bytes = b""  # of the lease as it is stored


class FencedWrites:
    """Runs the scripts for one run. Redis errors pass through; callers translate them."""

    def __init__(self, client: Client, keys: RunKeys) -> None:
        self._keys = keys
        self._size = OversizeDetector(client)
        self._acquire = client.register_script(source("acquire"))
        self._publish = client.register_script(source("publish"))
        self._settle = client.register_script(source("settle"))
        self._trim = client.register_script(source("trim"))
        self._write = client.register_script(source("write"))
        self._beats = count(1)

    def acquire(
        self, owner: str, ttl_ms: int, epoch: int, floor: int, stood_still: bytes = b""
    ) -> LeaseAnswer:
        """Take or renew the lease.

        `epoch` is the learner's own epoch (0 before the first), `floor` the highest known one. `stood_still`
        is a lease value that was not renewed for its whole time to live, so that it may be replaced.
        """
        answer = self._acquire(
            keys=[self._keys.lease, self._keys.epoch],
            args=[owner, ttl_ms, epoch, floor, epoch_step(), next(self._beats), stood_still],
        )
        outcome, found, value = cast(list[Any], answer)
        return LeaseAnswer(outcome.decode(), int(found), *read_lease(value), value)

    def keep(self, owner: str, ttl_ms: int, epoch: int) -> None:
        """Prolong the lease if this learner still holds it in this epoch. This call needs no lock."""
        keys = [self._keys.lease, self._keys.epoch]
        self._acquire(keys=keys, args=[owner, ttl_ms, epoch, epoch, 0, next(self._beats), b""])

    def release(self, owner: str) -> None:
        """Delete the lease if this learner still holds it."""
        self.acquire(owner, ttl_ms=0, epoch=0, floor=0)

    def publish(self, weights: Weights) -> int | None:
        """Publish weights. If the stored version is not lower, write nothing and return it; else return None.

        Raises:
            FencedError: another learner leads, or the epoch key is missing (EpochMissingError).
            ConfigurationError: the server does not accept a value of this size.
        """
        blob = encode_weights(weights)
        fields: dict[str, Any] = {
            "epoch": weights.epoch,
            "version": weights.version,
            "update": weights.update,
            "steps": weights.trained_steps,
            "sha256": sha256(blob),
            "bytes": len(blob),
            "blob": blob,
        }
        try:
            answer = self._publish(
                keys=[self._keys.epoch, self._keys.weights],
                args=[weights.epoch, weights.version, *_flat(fields)],
            )
        except redis.RedisError as error:
            self._size.check("a publication", len(blob), "make network.hidden smaller", error)
            raise
        self._size.passed()
        outcome, number = cast(list[Any], answer)
        _raise_if_fenced(outcome, number, weights.epoch)
        return int(number) if outcome == b"regression" else None

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> list[bool]:
        """Record the outcomes of entries; returns for each whether it counted (the stream still had it).

        Raises:
            FencedError: another learner leads, or the epoch key is missing (EpochMissingError).
        """
        arguments: list[Any] = [epoch, GROUP]
        for settlement in settlements:
            arguments += [settlement.entry_id, settlement.outcome.value, settlement.reason, settlement.steps]
        answer = self._settle(keys=[self._keys.epoch, self._keys.rollouts, self._keys.ledger], args=arguments)
        outcome, number, *counted = cast(list[Any], answer)
        _raise_if_fenced(outcome, number, epoch)
        return [bool(x) for x in counted]

    def trim(self, epoch: int, count: int) -> int:
        """Remove the oldest `count` unread rollouts and count them as lost; returns how many there were.

        Raises:
            FencedError: another learner leads, or the epoch key is missing (EpochMissingError).
        """
        keys = [self._keys.epoch, self._keys.rollouts, self._keys.ledger]
        outcome, number = cast(list[Any], self._trim(keys=keys, args=[epoch, GROUP, count]))
        _raise_if_fenced(outcome, number, epoch)
        return int(number)

    def write_hash(self, epoch: int, key: str, fields: Mapping[str, Any]) -> None:
        """Replace a hash that the learner owns.

        Raises:
            FencedError: another learner leads; its epoch is not this learner's.
        """
        self._run_write(epoch, key, ["hash", *_flat(fields)])

    def write_dated(self, epoch: int, key: str, fields: Mapping[str, Any], dated: str) -> None:
        """Replace a hash that the learner owns; the script sets its field `dated` to the server's TIME.

        Raises:
            FencedError: another learner leads; its epoch is not this learner's.
        """
        self._run_write(epoch, key, ["dated", dated, *_flat({k: v for k, v in fields.items() if k != dated})])

    def write_fields(self, epoch: int, key: str, fields: Mapping[str, Any]) -> None:
        """Set fields of a hash; the others stay.

        Raises:
            FencedError: another learner leads; its epoch is not this learner's.
        """
        self._run_write(epoch, key, ["fields", *_flat(fields)])

    def write_string(self, epoch: int, key: str, value: str) -> None:
        """Replace a string that the learner owns.

        Raises:
            FencedError: another learner leads; its epoch is not this learner's.
        """
        self._run_write(epoch, key, ["string", value])

    def _run_write(self, epoch: int, key: str, arguments: list[Any]) -> None:
        answer = self._write(keys=[self._keys.epoch, key], args=[epoch, *arguments])
        outcome, number = cast(list[Any], answer)
        _raise_if_fenced(outcome, number, epoch)


def _raise_if_fenced(outcome: bytes, found: int, epoch: int) -> None:
    if outcome != b"fenced":
        return
    if found < epoch:
        raise EpochMissingError(f"the epoch key holds {found}, this learner's epoch is {epoch}")
    raise FencedError(f"epoch {found} was taken by another learner, this one had {epoch}")


def _flat(fields: Mapping[str, Any]) -> list[Any]:
    return [item for pair in fields.items() for item in pair]
