"""Turns stream entries into the rollouts of one batch: judges, unpacks and checks them, and counts drops.

The intake judges an entry by its plain fields before it unpacks the payload. It reads no more than the batch
needs, and no update passes while a batch is gathered, so the judgement holds when the rollout is trained on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dppo_redis.errors import WireError
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.lineage import Lineage, PublishedVersions
from dppo_redis.protocol.rollout import MAX_ENVIRONMENTS, Rollout, RolloutHeader
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import checksum
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog
from dppo_redis.store.pending import POISON_DEATHS, StreamEntry
from dppo_redis.store.rollout_stream import parse_header
from learner.intake.batch_rule import BatchRule
from learner.intake.decoder import RolloutDecoder
from learner.intake.drops import Drops
from learner.intake.staleness import Verdict, judge

BLOCK_MS = 500  # a tenth of the socket timeout
_MOST_ENTRIES = 256
_READ_BYTES = 64 * 2**20
_BYTES_AT_ONCE = 64 * 2**10


class Entries(Protocol):
    """The source of stream entries."""

    def read(self, count: int, block_ms: int, at_once: int) -> Iterable[StreamEntry]:
        """Up to `count` entries, waiting at most `block_ms`; one read fetches `at_once`."""
        ...

    def survived(self) -> None:
        """Note that this process has survived decoding the entries read last."""
        ...


class Quarantine(Protocol):
    """Stores refused entries for inspection."""

    def __call__(self, entry: StreamEntry, error: WireError) -> None:
        """Store the head of a refused entry."""
        ...


@dataclass(frozen=True)
class AcceptedRollout:
    """A rollout that will be trained on."""

    entry_id: bytes
    header: RolloutHeader
    rollout: Rollout


class Intake:
    """Gathers the rollouts of the next batch."""

    def __init__(
        self,
        entries: Entries,
        spec: Spec,
        settle: Callable[[Sequence[Settlement]], None],
        quarantine: Quarantine,
        rule: BatchRule,
        max_staleness: int,
        event_log: EventLog = NO_EVENT_LOG,
        versions: Callable[[], PublishedVersions | None] = lambda: None,  # published; None: not judged
    ) -> None:
        self._entries = entries
        self._digest = spec.digest()
        self._decoder = RolloutDecoder(spec)
        self._settle = settle
        self._quarantine = quarantine
        self._rule = rule
        self._event_log = event_log
        self._versions = versions
        self._max_staleness = max_staleness
        self._entry_bytes = 1.0
        # Accepted rollouts that are not settled, in order of arrival; None after `poll` returned their batch.
        self._in_hand: dict[bytes, AcceptedRollout | None] = {}
        self._headers: list[RolloutHeader] = []  # of those that `poll` did not return yet
        self.drops = Drops()
        self.last_sequence_numbers = LastSequenceNumbers()
        self.damaged = 0  # entries that could not be decoded

    def poll(self, learner_update: int, lineage: Callable[[], Lineage]) -> list[AcceptedRollout] | None:
        """Read once; returns the rollouts of a batch when it is full, else None.

        `lineage` is called for each entry: a new epoch may begin during the read.
        """
        dropped: list[Settlement] = []
        try:
            for entry in self._entries.read(self._wanted(), BLOCK_MS, self._at_once()):
                self._open(entry, learner_update, lineage(), dropped)
        finally:  # also after a failed read: entries that are delivered again would count as duplicates
            self._settle(dropped)
        self._entries.survived()
        self.drops.all_dropped.record(dropped, bool(self._headers))
        if self._rule.missing(self._headers):
            return None
        return self._hand_over()

    def _open(
        self, entry: StreamEntry, learner_update: int, lineage: Lineage, dropped: list[Settlement]
    ) -> None:
        entry_bytes = sum(map(len, entry.fields)) + sum(map(len, entry.fields.values()))
        self._entry_bytes = max(self._entry_bytes * 0.9, entry_bytes)  # includes dropped entries
        if entry.id in self._in_hand:
            return  # delivered again after a lost reply; this intake still holds it
        settlement = self._consider(entry, learner_update, lineage)
        if settlement is not None:
            dropped.append(settlement)
            self._record_drop(entry, settlement)
        elif (accepted := self._in_hand[entry.id]) is not None:
            self.drops.recent_staleness.add(
                str(accepted.header.actor), learner_update - accepted.header.update
            )

    def _hand_over(self) -> list[AcceptedRollout]:
        """Return the full batch in its order; refuse the rollouts that a dead actor left beside it."""
        gathered, headers = self._gathered, self._headers
        self._in_hand, self._headers = dict.fromkeys(self._in_hand), []
        order = self._rule.order(headers)
        surplus = [accepted for i, accepted in enumerate(gathered) if i not in order]
        self._settle([_refused(accepted.entry_id, "surplus", accepted.header) for accepted in surplus])
        self.settled(surplus)
        return [gathered[i] for i in order]

    def _record_drop(self, entry: StreamEntry, settlement: Settlement) -> None:
        """Count a drop by actor, and write it to the event log before its outcome is settled."""
        actor = self.drops.by_actor.add(entry.fields.get(b"actor", b""), settlement)
        if settlement.outcome is Outcome.STALE:
            self.drops.recent_staleness.add(actor, None)
        boot, seq = entry.fields.get(b"boot", b"")[:16], entry.fields.get(b"seq", b"")[:20]
        outcome, reason = settlement.outcome, settlement.reason
        self._event_log.write("dropped", id=entry.id, boot=boot, seq=seq, outcome=outcome, reason=reason)

    def settled_sequence_numbers(self) -> LastSequenceNumbers:
        """The last sequence numbers without unsettled rollouts, which another learner may receive again."""
        last_sequence_numbers = self.last_sequence_numbers.to_dict()
        for header in self._headers:
            last_sequence_numbers[header.boot] = min(
                last_sequence_numbers.get(header.boot, header.seq), header.seq - 1
            )
        return LastSequenceNumbers(last_sequence_numbers)

    @property
    def gathered(self) -> int:
        """Rollouts in hand that wait for their batch to fill."""
        return len(self._headers)

    @property
    def slots(self) -> set[int]:
        """The slots of the actors that sampled these rollouts."""
        return {header.actor for header in self._headers}

    @property
    def alarm(self) -> str:
        """The alarm for the operator; empty while rollouts are trained on."""
        return self.drops.alarm

    @property
    def dropped_by_actor(self) -> str:
        """A text that names the actors with most dropped rollouts, and the reasons."""
        return self.drops.by_actor.text

    def settled(self, batch: Sequence[AcceptedRollout]) -> None:
        """Forget a settled batch; its entries will not be delivered again."""
        for accepted in batch:
            self._in_hand.pop(accepted.entry_id, None)

    @property
    def _gathered(self) -> list[AcceptedRollout]:
        return [accepted for accepted in self._in_hand.values() if accepted is not None]

    def _wanted(self) -> int:
        """The number of entries that the batch still needs, limited in number and in bytes."""
        by_bytes = int(_READ_BYTES / self._entry_bytes)
        return max(1, min(self._rule.missing(self._headers), by_bytes, _MOST_ENTRIES))

    def _at_once(self) -> int:
        """The number of entries that one read fetches; the others arrive while these are opened."""
        return max(1, int(_BYTES_AT_ONCE / self._entry_bytes))

    def _consider(self, entry: StreamEntry, learner_update: int, lineage: Lineage) -> Settlement | None:
        """Take an entry into the batch and return None, or return how to settle it."""
        if not entry.fields:  # trimmed after it was delivered: the audit counts it as lost
            return Settlement(entry.id, Outcome.LOST)
        steps = 0
        try:
            if entry.deaths >= POISON_DEATHS:
                raise WireError("poison", f"{entry.deaths} learner processes died while they held it")
            header = parse_header(entry)
            self._check_header(header)
            steps = header.steps
            if self.last_sequence_numbers.is_duplicate(header):
                return Settlement(entry.id, Outcome.DUPLICATE, steps=steps)
            verdict = judge(
                header.epoch,
                header.update,
                lineage=lineage,
                learner_update=learner_update,
                max_staleness=self._max_staleness,
                version=header.version,
                used=self._versions(),
            )
            if verdict is Verdict.STALE:
                self.last_sequence_numbers.take(header)
                return Settlement(entry.id, Outcome.STALE, steps=steps)
            is_fresh = verdict is Verdict.FRESH
            refusal = self._rule.refusal(header, self._headers) if is_fresh else verdict.value
            if refusal is not None:
                self.last_sequence_numbers.take(header)
                return _refused(entry.id, refusal, header)
            self._take(entry, header)
        except WireError as error:
            self.damaged += 1
            self._quarantine(entry, error)
            return Settlement(entry.id, Outcome.REFUSED, error.reason)
        return None

    def _check_header(self, header: RolloutHeader) -> None:
        if header.spec != self._digest:
            raise WireError("spec", f"spec {header.spec}, this run has {self._digest}")
        if header.steps > self._decoder.spec.rollout_steps * MAX_ENVIRONMENTS:
            raise WireError("header", f"{header.steps} steps in one rollout")

    def _take(self, entry: StreamEntry, header: RolloutHeader) -> None:
        payload = entry.fields.get(b"payload")
        if payload is None:
            raise WireError("header", "no field payload")
        if checksum(payload) != header.crc:
            raise WireError("crc", "the payload does not match its crc")
        rollout = self._decoder.decode(payload)
        if rollout.steps != header.steps or header.steps == 0:
            raise WireError("header", f"{header.steps} steps claimed, {rollout.steps} valid rows")
        self.last_sequence_numbers.take(header)
        self._in_hand[entry.id] = AcceptedRollout(entry.id, header, rollout)
        self._headers.append(header)


def _refused(entry_id: bytes, reason: str, header: RolloutHeader) -> Settlement:
    return Settlement(entry_id, Outcome.REFUSED, reason, header.steps)
