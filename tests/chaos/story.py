"""The merged histories of a run, in the order of time and indexed for the checker. Pure."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from dppo_redis.protocol.ledger import Ledger, Outcome
from dppo_redis.store.run_store import Counters

Event = dict[str, Any]
Rollout = tuple[str, int]  # boot, seq
Pair = tuple[int, int]  # epoch, version
_UNLIMITED = 2**63
SAME_MOMENT_S = 0.5  # between a reply and the line about it, on a busy machine
_UNDECIDED_S = 5.0  # a push may have been sent so long before it reached the stream


@dataclass(frozen=True)
class Removal:
    """Entries that the injector took, or a learner's valve, or a server that died took with it."""

    time: float
    entries: int  # at most
    resets: bool  # the stream's own counter began again
    since: float  # from then on nobody counted what was added


def imbalance(counters: Counters) -> int:
    """Entries that were added and neither have an outcome nor wait."""
    ledger = Ledger(counters.ledger)
    return ledger.entries_before + counters.entries_added - ledger.settled - counters.backlog


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """The events of a history file; an incomplete last line of a killed process is ignored."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


class Story:
    """Events in the order of time, with the sums and indices that the rules need."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: dict[str, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event["time"]):
            self._events[event["event"]].append(event)
            if "missed" in event:
                self._events["missed"].append(event)

    def of(self, kind: str) -> list[Event]:
        """All events of a kind."""
        return self._events.get(kind, [])

    # The books

    @cached_property
    def final(self) -> Event | None:
        """The ledger that the injector read at the end, when nothing changed any more."""
        return self.of("final")[-1] if self.of("final") else None

    @property
    def ledger(self) -> dict[str, int]:
        return self.final["ledger"] if self.final is not None else {}

    @cached_property
    def waiting_ids(self) -> set[str]:
        """Entries in the stream at the end."""
        return {entry_id for entry_id, _, _ in self.final["entries"]} if self.final is not None else set()

    @cached_property
    def attempted(self) -> dict[Outcome, set[str]]:
        """Entries by the outcome with which a learner tried to settle them, successful or not."""
        found: dict[Outcome, set[str]] = {outcome: set() for outcome in Outcome}
        for event in self.of("trained"):
            found[Outcome.TRAINED].update(entry_id for entry_id, *_ in event["rollouts"])
        for event in self.of("dropped"):
            found[Outcome(event["outcome"])].add(event["id"])
        return found

    @cached_property
    def counted(self) -> dict[Outcome, Counter[str]]:
        """Entries whose settling Redis confirmed, with how often it did."""
        found: dict[Outcome, Counter[str]] = {outcome: Counter() for outcome in Outcome}
        for event in self.of("settled"):
            for entry_id, outcome, counts in event["entries"]:
                found[Outcome(outcome)][entry_id] += bool(counts)
        return {outcome: +counter for outcome, counter in found.items()}

    @cached_property
    def forgotten(self) -> Counter[Outcome]:
        """Outcomes that only a learner's memory held: the learner died, and the server lost its data."""
        found: Counter[Outcome] = Counter()
        for process, successor in pairwise(self.processes):
            settled = [event for event in self.of("settled") if event["process"] == process]
            saved = [event["time"] for event in self.of("saved") if event["process"] == process]
            last = settled[-1]["time"] if settled else 0.0
            began = next(event["time"] for event in self.of("acquired") if event["process"] == successor)
            if any(removal.resets and last <= removal.time <= began for removal in self.removals):
                unsaved = [event for event in settled if not saved or event["time"] > saved[-1]]
                found.update(Outcome(o) for event in unsaved for _, o, counts in event["entries"] if counts)
        return found

    @cached_property
    def settled_ids(self) -> set[str]:
        """Entries with some outcome that counted, or that were dropped whether it counted or not."""
        counted = {entry_id for counter in self.counted.values() for entry_id in counter}
        return counted | {event["id"] for event in self.of("dropped")}

    @cached_property
    def removals(self) -> list[Removal]:
        """In the order of time; where nobody could count, all that can have been in the stream."""
        found: list[Removal] = []
        for event in self.of("removed"):
            entries = event["entries"]
            if entries is None:
                entries = self._at_most_in_the_stream(found[-1].time if found else 0.0, event["time"])
            since = event.get("since") or event["time"]
            found.append(Removal(event["time"], entries, event["resets"], since))
        found += [Removal(time, entries, resets=False, since=time) for time, entries in self.valve_drops]
        return sorted(found, key=lambda removal: removal.time)

    @cached_property
    def valve_drops(self) -> list[tuple[float, int]]:
        """(when, how many) of the rollouts that learners dropped; at most, where no reply told the number."""
        found: list[tuple[float, int]] = []
        unanswered: dict[str, int] = {}  # process -> place in `found`
        for event in sorted([*self.of("trimming"), *self.of("trimmed")], key=lambda event: event["time"]):
            if event["event"] == "trimming":
                unanswered[event["process"]] = len(found)
                found.append((event["time"], event["entries"]))
            else:
                found[unanswered.pop(event["process"])] = (event["time"], event["entries"])
        return found

    def _at_most_in_the_stream(self, since: float, until: float) -> int:
        """Pushes made since the last removal, or shortly before it, that had no outcome yet."""
        settled = {
            entry_id
            for event in self.of("settled")
            if event["time"] <= until
            for entry_id, _, counts in event["entries"]
            if counts
        }
        out = {
            (boot, seq)
            for event in self.of("trained")
            for entry_id, boot, seq, *_ in event["rollouts"]
            if entry_id in settled
        }
        pushed = {
            (event["boot"], event["seq"])
            for kind in ("produced", "injected")
            for event in self.of(kind)
            if since - _UNDECIDED_S <= event["time"] <= until + SAME_MOMENT_S
        }
        return len(pushed - out)

    # Rollouts

    @cached_property
    def produced(self) -> dict[Rollout, tuple[int, int, int]]:
        """(epoch, version, update) of the weights of every rollout that an actor, or the injector, made."""
        return {
            (event["boot"], event["seq"]): (event["epoch"], event["version"], event["update"])
            for kind in ("injected", "produced")
            for event in self.of(kind)
            if "epoch" in event
        }

    @cached_property
    def confirmed(self) -> dict[Rollout, float]:
        """When Redis first said that it has taken a rollout."""
        found: dict[Rollout, float] = {}
        for event in self.of("confirmed"):
            found.setdefault((event["boot"], event["seq"]), event["time"])
        return found

    def is_unseen(self, time: float, look_s: float) -> bool:
        """Whether what was added then was taken by a reset before the keeper can have counted it."""
        return any(
            removal.since - look_s <= time <= removal.time + SAME_MOMENT_S
            for removal in self.removals
            if removal.resets
        )

    def time_of(self, entry_id: str) -> float:
        """The time at which an entry was added: from its actor's event, else from its id."""
        return self._times.get(entry_id) or int(entry_id.partition("-")[0]) / 1000

    @cached_property
    def _times(self) -> dict[str, float]:
        return {event["id"]: event["time"] for event in self.of("confirmed")}

    @cached_property
    def decided(self) -> set[Rollout]:
        """Rollouts that were trained on or dropped, or wait in the stream."""
        found = {(boot, seq) for event in self.of("trained") for _, boot, seq, *_ in event["rollouts"]}
        for event in self.of("dropped"):
            if event["outcome"] != Outcome.LOST and event["seq"].isdigit():
                found.add((event["boot"], int(event["seq"])))
        waiting = self.final["entries"] if self.final is not None else []
        return found | {(boot, int(seq)) for _, boot, seq in waiting if seq.isdigit()}

    # Learners

    @cached_property
    def processes(self) -> list[str]:
        """Learner processes, in the order in which they began to lead."""
        return list(dict.fromkeys(event["process"] for event in self.of("acquired")))

    @cached_property
    def owner_of_epoch(self) -> dict[int, str]:
        return {event["epoch"]: event["process"] for event in self.of("acquired")}

    def lineage(self, process: str) -> dict[str, int]:
        """The processes whose training led to this one's weights, each with the update it led up to."""
        return self._lineages[process]

    @cached_property
    def _lineages(self) -> dict[str, dict[str, int]]:
        origin = {event["process"]: event for event in self.of("resumed")}
        lineages: dict[str, dict[str, int]] = {}
        for process in self.processes:
            lineage = {process: _UNLIMITED}
            child = origin.get(process)
            limit = _UNLIMITED
            while child is not None:
                parent = self.owner_of_epoch.get(child["epoch"])
                if parent is None or parent in lineage:
                    break
                limit = min(limit, child["update"])
                lineage[parent] = limit
                child = origin.get(parent)
            lineages[process] = lineage
        return lineages

    def trained_in_lineage(self, process: str) -> Iterator[tuple[int, list[Rollout]]]:
        """(update, rollouts) of every update that this process's weights come from."""
        for ancestor, limit in self.lineage(process).items():
            for event in self._trained_by.get(ancestor, []):
                if event["at"] < limit:
                    yield event["at"], [(boot, seq) for _, boot, seq, *_ in event["rollouts"]]

    @cached_property
    def _trained_by(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.of("trained"):
            found[event["process"]].append(event)
        return found

    # Weights

    @cached_property
    def _attempts(self) -> list[tuple[Event, str]]:
        """Each attempt to publish, with how it ended: published, refused, or `unknown`."""
        ends = sorted(
            [*self.of("publishing"), *self.of("published"), *self.of("refused")], key=lambda e: e["time"]
        )
        open_attempts: dict[str, Event] = {}
        found: list[tuple[Event, str]] = []
        for event in ends:
            attempt = open_attempts.pop(event["process"], None)
            if event["event"] == "publishing":
                open_attempts[event["process"]] = event
            if attempt is not None:
                found.append((attempt, "unknown" if event["event"] == "publishing" else event["event"]))
        return found + [(attempt, "unknown") for attempt in open_attempts.values()]

    @cached_property
    def publications(self) -> list[tuple[float, Pair]]:
        """(when it was begun, pair) of everything that was surely published."""
        return [(a["time"], (a["epoch"], a["version"])) for a, end in self._attempts if end == "published"]

    @property
    def published(self) -> list[Pair]:
        return [pair for _, pair in self.publications]

    def digests_of(self, pair: Pair) -> set[str]:
        """The arrays that can be stored under this pair."""
        return self._digests.get(pair, set())

    @cached_property
    def _digests(self) -> dict[Pair, set[str]]:
        found: dict[Pair, set[str]] = defaultdict(set)
        for attempt, end in self._attempts:
            if end != "refused":
                found[attempt["epoch"], attempt["version"]].add(attempt["digest"])
        return found
