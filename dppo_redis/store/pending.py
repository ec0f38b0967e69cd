"""Entries that were delivered and not settled: the pending list of the learner's group.

The server counts how often it has delivered an entry. Here that count is kept to mean how many
learner processes got the entry and did not survive it: a process that starts raises it before it
opens an entry it found pending, and lowers it again once the entry has proved harmless. Reading
again after a flap of the network leaves the count alone, so that flaps cost no good entry.
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

POISON_DEATHS = 3  # processes that one entry may kill; then it is refused unopened
LOOK_FOR_SKIPPED_S = 2.0
_PAGE = 1000
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class StreamEntry:
    """`fields` is empty when it was trimmed meanwhile."""

    id: bytes
    fields: Mapping[bytes, bytes]
    deaths: int = 0  # learner processes that ended with it in hand, before one has opened it unharmed


@dataclass(frozen=True)
class _Waiting:
    """A pending entry that this process has not got yet."""

    id: bytes
    count: int  # of deliveries, from when this process gets it
    deaths: int  # processes before this one that had it

    @property
    def is_suspect(self) -> bool:
        """What may have killed two processes is opened alone, when there is nothing else to do."""
        return 1 < self.deaths < POISON_DEATHS


class PendingEntries:
    """What is pending for the learner's one consumer. Redis errors pass through."""

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key
        self._is_known = False
        self._is_judged = False
        self._waiting: dict[bytes, _Waiting] = {}  # in order of arrival
        self._on_trial: list[bytes] = []  # with a raised count
        self._look_for_skipped = RateLimit(LOOK_FOR_SKIPPED_S)
        self._rate_limit = RateLimit()

    def look(self) -> None:
        """List what is pending, where that is not known: at start, and after read errors."""
        if self._is_known:
            return
        found = self._list()
        if not self._is_judged:  # once per process: later counts say nothing about earlier ones
            self._waiting = {i: _Waiting(i, count + 1, count) for i, count in found}
        else:
            self._waiting = {i: self._waiting.get(i, _Waiting(i, count, 0)) for i, count in found}
        self._is_known = self._is_judged = True

    def list_again(self) -> None:
        """A reply was lost, and entries may have been in it."""
        self._is_known = False

    def forget(self) -> None:
        """The group is gone, and its list with it."""
        self._waiting.clear()
        self._on_trial.clear()

    @property
    def has_suspects(self) -> bool:
        """Whether entries wait that killed processes before."""
        return any(entry.is_suspect for entry in self._waiting.values())

    def take(self, count: int) -> list[StreamEntry]:
        """Up to `count` entries in order of arrival; empty once all were handed out."""
        entries: list[StreamEntry] = []
        while not entries and (ordinary := self._select(suspect=False)):  # all of one claim may be trimmed
            _, alike = next(groupby(ordinary, lambda entry: (entry.count, entry.deaths)))
            entries = self._claim(list(alike)[:count])
        return entries

    def take_suspect(self) -> list[StreamEntry]:
        """One entry that killed processes before; empty where there is none."""
        suspects = self._select(suspect=True)
        return self._claim(suspects[:1]) if suspects else []

    def _select(self, *, suspect: bool) -> list[_Waiting]:
        return [entry for entry in self._waiting.values() if entry.is_suspect is suspect]

    def deliver_skipped(self, *, is_idle: bool) -> None:
        """Deliver entries that another client made the group skip (XGROUP SETID, XACK).

        An idle run delivers them at once, a busy one within some updates.
        """
        if self._waiting or not (is_idle or self._look_for_skipped.due()):
            return
        skipped = self._client.register_script(source("skipped"))(keys=[self._key], args=[GROUP])
        if skipped and self._rate_limit.due():
            _log.warning(
                "the group had skipped entries (XGROUP SETID or XACK by another program): reading them now"
            )

    def survived(self) -> None:
        """The entries on trial were decoded and this process survived: clear their suspicion."""
        if self._on_trial:
            self._claim_as(self._on_trial, count=1, justid=True)
            self._on_trial.clear()

    def _claim(self, wanted: list[_Waiting]) -> list[StreamEntry]:
        first = wanted[0]
        if first.count > 1:
            self._on_trial += [entry.id for entry in wanted]
        found = self._claim_as([entry.id for entry in wanted], first.count)
        for entry in wanted:  # only now: an error leaves them waiting
            del self._waiting[entry.id]
        return [StreamEntry(entry_id, values, first.deaths) for entry_id, values in found if values]

    def _claim_as(self, ids: list[bytes], count: int, *, justid: bool = False) -> list[Any]:
        """Get entries again with a delivery count of our choice; trimmed ones leave the list by it."""
        return cast(
            list[Any],
            self._client.xclaim(
                self._key, GROUP, CONSUMER, min_idle_time=0, message_ids=cast(Any, ids), retrycount=count,
                justid=justid,
            ),
        )  # fmt: skip

    def _list(self) -> list[tuple[bytes, int]]:
        """(id, deliveries) of all that is pending."""
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
