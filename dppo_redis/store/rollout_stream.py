"""The stream of rollouts: actors push with `RolloutProducer`, the learner reads with `RolloutConsumer`.

`fenced_writes.py` settles entries. An entry has plain text fields, which are enough to judge it, and the
packed payload.
"""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

import redis

from dppo_redis.errors import StoppedError, WireError
from dppo_redis.protocol.rollout import RolloutHeader
from dppo_redis.protocol.weights import WeightsId
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import (
    Channel,
    Client,
    OversizeDetector,
    TransientError,
    backoff,
    classify,
    pack,
    pack_around,
    replies,
)
from dppo_redis.store.error_causes import Recurrence
from dppo_redis.store.keys import CONSUMER, GROUP, RunKeys
from dppo_redis.store.pending import PendingEntries
from dppo_redis.store.pending import StreamEntry as StreamEntry
from dppo_redis.store.run_store import ROLLOUT_STEPS, read_rollout_steps
from dppo_redis.store.scripts import source
from dppo_redis.store.weight_store import parse_weights_id

_HEADER_FIELDS = tuple((f.name, f.name.encode(), f.type is str) for f in fields(RolloutHeader))
_ANSWERS = 3  # of the commands of `read_pacing`
_STARTING_PAUSE_S = 0.05
_HEX = re.compile(rb"[0-9a-f]{16}")
_LARGEST_NUMBER = 2**63 - 1
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class RunSnapshot:
    """The state of the run that an actor reads in each round trip."""

    backlog: int  # rollouts not settled
    weights: WeightsId | None  # current publication
    state: str  # run, pause or stop
    backlog_high: int  # start no rollout while the backlog is this high
    rollout_steps: int | None = None  # wanted length of this fleet's rollouts; None: T


def parse_header(entry: StreamEntry) -> RolloutHeader:
    """Read an entry's plain fields.

    Raises:
        WireError: reason `header`: a field is missing or is not what it should be.
    """
    values: dict[str, Any] = {}
    for name, key, is_text in _HEADER_FIELDS:
        raw = entry.fields.get(key)
        if raw is None:
            raise WireError("header", f"no field {name}")
        values[name] = _parse_text(name, raw) if is_text else _parse_number(name, raw)
    return RolloutHeader(**values)


def _parse_text(name: str, raw: bytes) -> str:
    if not _HEX.fullmatch(raw):
        raise WireError("header", f"{name} is not 16 hex digits")
    return raw.decode()


def _parse_number(name: str, raw: bytes) -> int:
    if not raw.isdigit() or len(raw) > 19 or (number := int(raw)) > _LARGEST_NUMBER:
        raise WireError("header", f"{name} is not a number")
    return number


class RolloutProducer:
    """An actor's access to the stream.

    It retries by itself: if the reply to a push was lost, it sends the rollout again under the same identity
    (boot, seq), and sends the next rollout only after that.
    """

    def __init__(
        self, client: Client, keys: RunKeys, stop: StopRequest, event_log: EventLog = NO_EVENT_LOG
    ) -> None:
        self._channel = Channel(client)
        self._keys = keys
        self._stop = stop
        self._event_log = event_log
        self._questions = pack(
            ("XLEN", keys.rollouts),
            ("HMGET", keys.weights, "epoch", "version"),
            ("HMGET", keys.control, "state", "backlog_high", ROLLOUT_STEPS),
        )
        self._learner_is_starting = False
        self._size = OversizeDetector(client)
        self.recurrence = Recurrence()
        self.ambiguous = 0  # sends whose reply was lost; the learner recognises the duplicates
        self.refused_full = 0  # sends that the server refused for want of memory

    def read_pacing(self) -> RunSnapshot:
        """Backlog, weights and control in one round trip. Redis errors pass through."""
        answers = self._channel.ask([self._questions], _ANSWERS)
        for answer in answers:
            if isinstance(answer, redis.RedisError):
                raise answer
        return self._snapshot(answers)

    def hang_up(self) -> None:
        """End a push from another thread, after a stop request: on a slow link it may take minutes."""
        self._channel.hang_up()

    def push(self, header: RolloutHeader, payload: bytes) -> RunSnapshot | None:
        """Send a rollout and read a snapshot in one round trip; waits until Redis has accepted the rollout.

        Returns None if Redis accepted the rollout but the snapshot could not be read.

        Raises:
            StoppedError: a stop was requested before it was known whether Redis accepted the rollout.
            ConfigurationError: Redis refuses for good.
        """
        # NOMKSTREAM: no learner would read rollouts in a stream without the group.
        command: list[Any] = ["XADD", self._keys.rollouts, "NOMKSTREAM", "*"]
        for name, value in vars(header).items():
            command += (name, str(value))
        packed = pack_around((*command, "payload"), payload, self._questions)
        self._event_log.write("produced", **vars(header))
        for pause_s in backoff():
            answers = self._try_push(header, packed)
            if answers is not None:
                looked = not any(isinstance(answer, redis.RedisError) for answer in answers)
                return self._snapshot(answers) if looked else None
            if self._stop.requested:
                self._event_log.write("abandoned", boot=header.boot, seq=header.seq)
                raise StoppedError("stopped with a rollout in hand")
            # If the learner is starting, retry soon: the rollout becomes stale while it waits.
            self._stop.sleep(min(pause_s, _STARTING_PAUSE_S) if self._learner_is_starting else pause_s)
        raise AssertionError("backoff is endless")

    def _try_push(self, header: RolloutHeader, packed: list[bytes]) -> list[Any] | None:
        """The answers for a snapshot if Redis accepted the entry; None if it did not."""
        try:
            added, *rest = self._channel.ask(packed, 1 + _ANSWERS)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self._explain(classify(error))
            self.ambiguous += 1
            self._event_log.write("ambiguous", boot=header.boot, seq=header.seq)
            self._size.check("a rollout", len(packed[1]), "make rollouts shorter (--rollout-steps)", error)
            return None
        self._size.passed()
        if isinstance(added, redis.RedisError):
            self._explain(classify(added))
            self.refused_full += isinstance(added, redis.exceptions.OutOfMemoryError)
            return None
        self.recurrence.over()
        self._learner_is_starting = added is None  # it has not created the stream yet
        if self._learner_is_starting:
            return None
        self._event_log.write("confirmed", boot=header.boot, seq=header.seq, id=added)
        return rest

    def _explain(self, error: Exception) -> None:
        if not isinstance(error, TransientError):
            raise error
        self.recurrence.log("push a rollout", error)

    @staticmethod
    def _snapshot(answers: list[Any]) -> RunSnapshot:
        backlog, (epoch, version), (state, high, steps) = answers
        return RunSnapshot(
            backlog=int(backlog),
            weights=parse_weights_id(epoch, version),
            state=(state or b"run").decode(errors="replace"),
            backlog_high=int(high) if high and high.isdigit() and len(high) < 10 else 1,
            rollout_steps=read_rollout_steps(steps),
        )


class RolloutConsumer:
    """The learner's access to the stream: a consumer group with one stable consumer."""

    def __init__(self, client: Client, keys: RunKeys, restore: Callable[[], None]) -> None:
        """`restore` creates stream and group again; it is called when they are missing."""
        self._client = client
        self._key = keys.rollouts
        self._restore = restore
        self._pending = PendingEntries(client, keys.rollouts)
        self._rate_limit = RateLimit()
        self._own_first = True  # at start, and after errors: a reply may have been lost

    def claim_all(self) -> None:
        """Claim every pending entry of the group; only the holder of the lease may do this."""
        try:
            self._claim_all()
        except redis.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            self._restore()  # the group was deleted: no entry is pending

    def _claim_all(self) -> None:
        start = b"0-0"
        while self._others_have_pending():
            # JUSTID leaves the delivery counts alone: taking over is not a delivery.
            claimed = cast(
                list[bytes],
                self._client.xautoclaim(
                    self._key, GROUP, CONSUMER, min_idle_time=0, start_id=start, count=100, justid=True
                ),
            )
            if claimed:  # else it only removed references to trimmed entries: there may be more
                milliseconds, _, sequence = claimed[-1].partition(b"-")
                start = b"%s-%d" % (milliseconds, int(sequence) + 1)

    def _others_have_pending(self) -> bool:
        consumers = self._client.xpending(self._key, GROUP)["consumers"]
        return any(consumer["name"] != CONSUMER.encode() for consumer in consumers)

    def read(self, count: int, block_ms: int, at_once: int = 1000) -> Iterator[StreamEntry]:
        """Yield up to `count` entries as they come, pending ones first; waits at most `block_ms`.

        The server sends `at_once` entries in one reply, so that the next ones arrive while the caller decodes
        some. If the caller stops early or Redis fails (its errors pass through), the next read begins with
        the pending entries again.
        """
        is_complete = False
        try:
            yield from self._read_own(count) if self._own_first else self._read_new(count, block_ms, at_once)
            is_complete = True
        except redis.ResponseError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            if str(error).startswith("NOGROUP"):
                if self._rate_limit.due():
                    _log.warning("the stream or its group is missing: creating them again")
                self._pending.forget()
            self._restore()
            is_complete = True
        finally:
            if not is_complete:
                self._own_first = True
                self._pending.list_again()

    def _read_own(self, count: int) -> Iterator[StreamEntry]:
        self._pending.ensure_listed()
        entries = self._pending.take(count)
        self._own_first = bool(entries)
        yield from entries

    def _read_new(self, count: int, block_ms: int, at_once: int) -> Iterator[StreamEntry]:
        block: list[Any] = [] if self._pending.has_suspects else ["BLOCK", block_ms]
        commands = []
        for start in range(0, count, at_once):
            most = min(at_once, count - start)
            commands.append(
                ["XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", most, *block, "STREAMS", self._key, ">"]
            )
            block = []  # only the first waits
        is_empty = True
        for reply in replies(self._client, pack(*commands), len(commands)):
            if isinstance(reply, redis.RedisError):
                raise reply
            for entry_id, pairs in reply[0][1] if reply else ():
                is_empty = False
                yield StreamEntry(entry_id, dict(zip(pairs[::2], pairs[1::2], strict=True)))
        if is_empty and self._pending.has_suspects:
            yield from self._pending.take_suspect()
        else:
            self._pending.deliver_skipped(is_idle=is_empty)

    def survived(self) -> None:
        """Note that the entries of the last read were decoded. Redis errors pass through."""
        try:
            self._pending.survived()
        except redis.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            self._pending.forget()


def ensure_group(client: Client, keys: RunKeys) -> bool:
    """Create stream and group if they are missing; returns whether the stream is new."""
    return bool(client.register_script(source("group"))(keys=[keys.rollouts], args=[GROUP]))
