"""The registry of a run's actors: slots, boots, and what each living actor reports about itself.

An actor's hash expires when its owner dies. The sorted set of actors is only an index of these hashes.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import redis

from dppo_redis.protocol.report_fields import to_fields
from dppo_redis.protocol.reports import BOOT, HOLDER, ActorReport
from dppo_redis.service.renewal import RenewalTracker
from dppo_redis.service.shutdown import is_alive, pid_scope
from dppo_redis.store.client import Client, TransientError
from dppo_redis.store.keys import RunKeys

ACTOR_TTL_MS = 10_000
BEAT_PERIOD_S = 1.0
_DIGITS = 9
FIRST_OUTSIDE_SLOT = 1000  # planned actors have lower slots; actors that join later get slots from here on


@dataclass(frozen=True)
class SlotHolder:
    """A process that registered for a slot."""

    host: str
    pid: int
    beat: bytes  # time of its last beat, by its own clock
    place: str = ""  # where its process id is unique; empty in older releases

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @property
    def is_dead(self) -> bool:
        """Whether the process has certainly ended: it ran on this machine and is gone, or had our own id."""
        if (self.place or self.host) != (pid_scope() if self.place else socket.gethostname()):
            return False
        return self.pid == os.getpid() or not is_alive(self.pid)


class Registry:
    """The actors of one run. Redis errors pass through; callers translate them."""

    def __init__(self, client: Client, keys: RunKeys) -> None:
        self._client = client
        self._keys = keys
        self._renewals = RenewalTracker(ACTOR_TTL_MS / 1000)

    def join(self, slot: int | None) -> tuple[int, int]:
        """Take `slot`, or if it is None a new one; returns the slot and how often it has started.

        Raises:
            TransientError: another program damaged the number; the learner repairs it.
        """
        if slot is None:
            # No field of its own: with actors that come and go these fields would grow without end.
            return FIRST_OUTSIDE_SLOT + self._count("next") - 1, 1
        boot = self._count(str(slot))
        if boot == 1 and slot >= FIRST_OUTSIDE_SLOT:  # the first process of this slot was not counted
            boot = self._count(str(slot))
        return slot, boot

    def _count(self, field: str) -> int:
        try:
            return int(self._client.hincrby(self._keys.boots, field, 1))
        except redis.ResponseError as error:
            if "not an integer" not in str(error):
                raise
            raise TransientError(f"field {field} of {self._keys.boots} is damaged") from error

    def holder(self, slot: int) -> SlotHolder | None:
        """The process that last registered for this slot; None if its registration has expired."""
        pipeline = self._client.pipeline(transaction=False)
        for name in HOLDER:
            pipeline.hget(self._keys.actor(slot), name)
        return _holder_of(*pipeline.execute())

    def beat(self, slot: int, report: ActorReport) -> str | None:
        """Renew this actor's registration, and write its report.

        If another process with a later boot renewed it last, return that process's host and process id.
        """
        pipeline = self._client.pipeline(transaction=False)
        key = self._keys.actor(slot)
        for name in (BOOT, *HOLDER):
            pipeline.hget(key, name)
        # The renewal comes first: at the server's memory limit it still works, HSET does not.
        pipeline.pexpire(key, ACTOR_TTL_MS)
        signed = replace(
            report, host=socket.gethostname(), pid=os.getpid(), place=pid_scope(), time=time.time()
        )
        pipeline.hset(key, mapping=dict[Any, Any](to_fields(signed)))
        pipeline.pexpire(key, ACTOR_TTL_MS)
        pipeline.zadd(self._keys.actors, {str(slot): time.time()})
        replies = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, redis.RedisError):
                self._ignore_full_server(reply, key)
        boot, *before = [reply if isinstance(reply, bytes) else None for reply in replies[: 1 + len(HOLDER)]]
        holder = _holder_of(*before)
        is_ours = holder is None or (holder.pid, holder.place) == (signed.pid, signed.place)
        if is_ours or not boot or not boot.isdigit() or int(boot[:_DIGITS]) <= (report.boot or 0):
            return None
        return str(holder)

    def _ignore_full_server(self, error: redis.RedisError, key: str) -> None:
        """Ignore the error of a full server, which still renews; remove a key of a wrong type."""
        if str(error).startswith("WRONGTYPE"):
            self._client.pexpire(key, 0)
        elif not isinstance(error, redis.exceptions.OutOfMemoryError):
            raise error

    def leave(self, slot: int, boot: int) -> None:
        """End this process's registration, but not that of another process in the same slot."""
        if self._client.hget(self._keys.actor(slot), BOOT) != str(boot).encode():
            return
        pipeline = self._client.pipeline(transaction=False)
        pipeline.pexpire(self._keys.actor(slot), 0)  # actors have no right to DEL
        pipeline.zrem(self._keys.actors, str(slot))
        pipeline.execute()

    def living(self, names: Sequence[str] = ()) -> dict[int, dict[str, str]]:
        """The last report of each living actor, by slot; an actor whose hash has expired is left out.

        With `names`, only these fields are read: a fleet of a thousand reports 25,000 each second.
        """
        slots = sorted(int(member) for member in self._members() if _is_slot(member))
        pipeline = self._client.pipeline(transaction=False)
        for slot in slots:
            if names:
                pipeline.hmget(self._keys.actor(slot), names)
            else:
                pipeline.hgetall(self._keys.actor(slot))
        answers = pipeline.execute(raise_on_error=False) if slots else []
        reports = {slot: _stored(answer, names) for slot, answer in zip(slots, answers, strict=True)}
        return {slot: report for slot, report in reports.items() if report}

    def _members(self) -> list[bytes]:
        return cast(list[bytes], self._client.zrange(self._keys.actors, 0, -1))

    def end_silent(self, living: Mapping[int, Mapping[str, str]]) -> dict[int, Mapping[str, str]]:
        """End registrations that are not renewed; returns the other living actors.

        After a step of the server's clock one can outlast its actor. The keeper calls this each second.
        """
        beats = {slot: tuple(report.get(name) for name in HOLDER) for slot, report in living.items()}
        silent = self._renewals.silent(beats, time.monotonic())
        if silent:
            self._client.unlink(*(self._keys.actor(slot) for slot in silent))
        return {slot: report for slot, report in living.items() if slot not in silent}

    def forget_dead(self, living: Mapping[int, Any]) -> set[int]:
        """Drop index entries of actors that vanished without leaving; returns their slots."""
        dead = [m for m in self._members() if not _is_slot(m) or int(m) not in living]
        if dead:
            self._client.zrem(self._keys.actors, *dead)
        return {int(member) for member in dead if _is_slot(member)}

    def joined(self) -> int:
        """The number of actors that have ever joined; restarts do not count."""
        counts = cast(dict[bytes, bytes], self._client.hgetall(self._keys.boots))
        stored = counts.get(b"next", b"")
        numbered = int(stored) if _is_slot(stored) else 0
        slots = [int(name) for name in counts if _is_slot(name)]
        given = FIRST_OUTSIDE_SLOT + numbered  # higher slots were given by hand
        return numbered + sum(slot < FIRST_OUTSIDE_SLOT or slot >= given for slot in slots)


def _holder_of(
    host: bytes | None, pid: bytes | None, beat: bytes | None, place: bytes | None
) -> SlotHolder | None:
    """The process that the fields HOLDER name; None if they name none."""
    if host is None or pid is None or not pid.isdigit() or len(pid) > _DIGITS:
        return None
    return SlotHolder(
        host.decode(errors="replace"), int(pid), beat or b"", (place or b"").decode(errors="replace")
    )


def _stored(answer: Any, names: Sequence[str]) -> dict[str, str]:
    """The fields in an answer to HMGET or HGETALL; none in an error."""
    if isinstance(answer, list):
        pairs = zip(names, answer, strict=True)
        return {name: value.decode(errors="replace") for name, value in pairs if value is not None}
    if not isinstance(answer, dict):
        return {}
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in answer.items()}


def _is_slot(member: bytes) -> bool:
    return member.isdigit() and len(member) <= _DIGITS
