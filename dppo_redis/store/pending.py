"""Reads the pending list of the learner's group: entries that were delivered and are not settled.

The server counts the deliveries of each entry. The learner sets this count, so that it says how many
learner processes received the entry and died with it. A learner that finds a pending entry at its start
raises the count before it opens the entry, and lowers it once the entry is decoded. After a lost connection
it reads entries again without raising the count: a bad network makes no good entry suspect.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from dppo_redis.service.logs import RateLimit
from dppo_redis.store.client import Client
from dppo_redis.store.keys import CONSUMER, GROUP
from dppo_redis.store.scripts import source

POISON_DEATHS = 3  # processes; an entry that killed so many is refused without being opened
SKIPPED_CHECK_INTERVAL_S = 2.0
_THOROUGH_CHECK_INTERVAL_S = 20.0  # a thorough check copies two whole entries in the server
_PAGE = 1000
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class StreamEntry:
    """One entry of the stream; `fields` is empty if the entry was trimmed since its delivery."""

    id: bytes
    fields: Mapping[bytes, bytes]
    deaths: int = 0  # learner processes that died while they held it, as long as none has decoded it


@dataclass(frozen=True)
class _Waiting:
    """A pending entry that this process has not received yet."""

    id: bytes
    count: int  # deliveries that the server counts once this process receives it
    deaths: int  # earlier processes that received it

    @property
    def is_suspect(self) -> bool:
        """Whether the entry may have killed two processes; the learner opens it alone, after other work."""
        return 1 < self.deaths < POISON_DEATHS


class PendingEntries:
    """The pending entries of the learner's one consumer. Redis errors pass through."""

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key
        self._is_known = False
        self._is_judged = False
        self._waiting: dict[bytes, _Waiting] = {}  # in order of arrival in the stream
        self._on_trial: list[bytes] = []  # received with a raised count and not decoded yet
        self._skipped_check = RateLimit(SKIPPED_CHECK_INTERVAL_S)
        self._thorough_check = RateLimit(_THOROUGH_CHECK_INTERVAL_S)
        self._rate_limit = RateLimit()

    def ensure_listed(self) -> None:
        """List the pending entries if they are not known: at start, and after read errors."""
        if self._is_known:
            return
        found = self._list()
        if not self._is_judged:  # only counts from before this process show deaths
            self._waiting = {i: _Waiting(i, count + 1, count) for i, count in found}
        else:
            self._waiting = {i: self._waiting.get(i, _Waiting(i, count, 0)) for i, count in found}
        self._is_known = self._is_judged = True

    def list_again(self) -> None:
        """Make `ensure_listed` list the entries again, because a lost reply may have delivered some."""
        self._is_known = False

    def forget(self) -> None:
        """Forget all entries, because the group and its pending list were deleted."""
        self._waiting.clear()
        self._on_trial.clear()

    @property
    def has_suspects(self) -> bool:
        """Whether suspect entries wait, which may have killed processes."""
        return any(entry.is_suspect for entry in self._waiting.values())

    def take(self, count: int) -> list[StreamEntry]:
        """Up to `count` entries that are not suspect, in order of arrival; empty if there are none."""
        entries: list[StreamEntry] = []
        while not entries and (ordinary := self._select(suspect=False)):  # all of one claim may be trimmed
            _, alike = next(groupby(ordinary, lambda entry: (entry.count, entry.deaths)))
            entries = self._claim(list(alike)[:count])
        return entries

    def take_suspect(self) -> list[StreamEntry]:
        """One suspect entry; empty if there is none."""
        suspects = self._select(suspect=True)
        return self._claim(suspects[:1]) if suspects else []

    def _select(self, *, suspect: bool) -> list[_Waiting]:
        return [entry for entry in self._waiting.values() if entry.is_suspect is suspect]

    def deliver_skipped(self, *, is_idle: bool) -> None:
        """Deliver entries that another client made the group skip (XGROUP SETID, XACK).

        An idle run delivers them at once, a busy one within some updates.
        """
        if self._waiting or not (is_idle or self._skipped_check.due()):
            return
        closely = int(is_idle or self._thorough_check.due())
        skipped = self._client.register_script(source("skipped"))(keys=[self._key], args=[GROUP, closely])
        if skipped and self._rate_limit.due():
            _log.warning(
                "the group had skipped entries (XGROUP SETID or XACK by another program): reading them now"
            )

    def survived(self) -> None:
        """Note that this process has decoded the entries on trial: they are no longer suspect."""
        if self._on_trial:
            self._claim_as(self._on_trial, count=1, justid=True)
            self._on_trial.clear()

    def _claim(self, wanted: list[_Waiting]) -> list[StreamEntry]:
        first = wanted[0]
        if first.count > 1:
            self._on_trial += [entry.id for entry in wanted]
        found = self._claim_as([entry.id for entry in wanted], first.count)
        for entry in wanted:  # after the claim: an error leaves them waiting
            del self._waiting[entry.id]
        return [StreamEntry(entry_id, values, first.deaths) for entry_id, values in found if values]

    def _claim_as(self, ids: list[bytes], count: int, *, justid: bool = False) -> list[Any]:
        """Receive entries again and set their delivery count; this removes trimmed ones from the list."""
        return cast(
            list[Any],
            self._client.xclaim(
                self._key, GROUP, CONSUMER, min_idle_time=0, message_ids=cast(Any, ids), retrycount=count,
                justid=justid,
            ),
        )  # fmt: skip

    def _list(self) -> list[tuple[bytes, int]]:
        """(id, deliveries) of all pending entries."""
        found: list[tuple[bytes, int]] = []
        start = b"-"
        while True:
            page = cast(
                list[Any],
                self._client.xpending_range(
                    self._key, GROUP, min=cast(Any, start), max="+", count=_PAGE, consumername=CONSUMER
                ),
            )
            found += [(entry["message_id"], entry["times_delivered"]) for entry in page]
            if len(page) < _PAGE:
                return found
            start = b"(" + found[-1][0]
