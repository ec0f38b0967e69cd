"""What the intake dropped: by actor, and the alarm when that is everything. For people, not for the books."""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from dppo_redis.protocol.ledger import Settlement
from dppo_redis.service.logs import Rarely

_SILENCE_S = 30.0
_PAIRS_KEPT = 1000  # of actor and reason: an actor may call itself anything
_ACTORS_SHOWN = 10
_log = logging.getLogger("dppo")


def why(settlement: Settlement) -> str:
    """Outcome and reason in one word: `stale`, `refused:crc`."""
    return ":".join(filter(None, (settlement.outcome.value, settlement.reason)))


class DropsByActor:
    """Whose rollouts were dropped, and why, since this process began."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, actor: bytes, settlement: Settlement) -> None:
        """Count a drop; `actor` is what the entry says, whatever that is."""
        name = actor.decode() if actor.isdigit() and len(actor) < 20 else "unknown"
        if (name, why(settlement)) not in self._counts and len(self._counts) >= _PAIRS_KEPT:
            name = "others"
        pair = (name, why(settlement))
        self._counts[pair] = self._counts.get(pair, 0) + 1

    @property
    def text(self) -> str:
        """Those with most drops: `actor 1000: 12 refused:spec, actor 3: 2 stale`."""
        most = sorted(self._counts.items(), key=lambda counted: -counted[1])[:_ACTORS_SHOWN]
        return ", ".join(f"actor {actor}: {count} {reason}" for (actor, reason), count in most)


class AllDropped:
    """Notices when nothing but drops has come for a while, and why."""

    def __init__(self) -> None:
        self._first_drop = self._last_drop = 0.0  # monotonic, since a rollout was last accepted
        self._causes: Counter[str] = Counter()
        self._rarely = Rarely()

    def look(self, dropped: Sequence[Settlement], gathered: bool) -> None:
        """What a poll brought; `gathered` where a batch has begun."""
        now = time.monotonic()
        if gathered:
            self._causes = Counter()
        elif dropped:
            self._first_drop = self._first_drop if self._causes else now
            self._last_drop = now
            self._causes.update(map(why, dropped))
            if self.text and self._rarely.due():
                _log.error("%s", self.text)

    @property
    def text(self) -> str:
        """What is wrong, with its causes; empty while all is well, or nothing comes at all."""
        causes, lasted_s = self._causes, self._last_drop - self._first_drop
        if not causes or lasted_s < _SILENCE_S or time.monotonic() - self._last_drop > _SILENCE_S:
            return ""
        listed = ", ".join(f"{count} {name}" for name, count in causes.most_common(3))
        return f"all {causes.total()} rollouts of the last {lasted_s:.0f} s were dropped: {listed}"
