"""Judges the histories of a run: the event logs of its services and of the injector. Pure.

Each rule takes the story and yields one sentence for each promise that was broken. Nothing is broken
in an empty list. The rules and what they cannot see are explained in README.md beside this file.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from dppo_redis.protocol.ledger import Outcome
from tests.chaos.story import SAME_MOMENT_S, Event, Pair, Rollout, Story

_NOTICED_S = 60.0  # a reset is booked by then, the restart of a whole fleet included
_LOOK_S = 3.0  # what was added since the keeper's last look before a reset, it never saw
_SETTLED = (Outcome.TRAINED, Outcome.STALE, Outcome.DUPLICATE, Outcome.REFUSED)


def check(events: Iterable[Event], max_staleness: int) -> list[str]:
    """Every broken promise, as a sentence; an empty list if none is broken."""
    story = Story(events)
    rules = (
        _nothing_is_missing_from_the_history(story),
        _ledger_is_exact(story),
        _lost_is_what_was_removed(story),
        _each_entry_counts_once(story),
        _nothing_is_trained_twice(story),
        _nothing_too_old_is_trained(story, max_staleness),
        _what_is_trained_was_produced(story),
        _epochs_are_taken_once(story),
        _versions_rise(story),
        _nobody_publishes_after_a_takeover(story),
        _what_is_read_was_published(story),
        _rollouts_are_accounted_for(story),
    )
    return [sentence for rule in rules for sentence in rule]


def _nothing_is_missing_from_the_history(story: Story) -> Iterator[str]:
    for event in story.of("missed"):
        yield f"{event['service']} could not write {event['missed']} events: this history proves nothing"
    if story.final is None:
        yield "the history has no final state of the books"


def _ledger_is_exact(story: Story) -> Iterator[str]:
    """The ledger balances at the end; each count lies between confirmed and possible settlements."""
    if story.final is None:
        return
    ledger = story.ledger
    settled = sum(ledger.get(outcome, 0) for outcome in Outcome)
    added, waiting = story.final["entries_added"], story.final["backlog"]
    if added != settled + waiting:
        yield f"{added} entries, but {settled} outcomes + {waiting} waiting"
    for event in story.of("looked"):
        if event["imbalance"] != 0:
            yield f"entries - outcomes - waiting was {event['imbalance']} at a look while nobody interfered"
    if story.final["imbalance"] != 0:
        yield f"the last imbalance is {story.final['imbalance']}"
    for outcome in _SETTLED:
        surely, maybe = len(story.counted[outcome]), len(story.attempted[outcome])
        if not surely - story.forgotten[outcome] <= ledger.get(outcome, 0) <= maybe:
            found = ledger.get(outcome, 0)
            yield f"the ledger has {found} {outcome}; {surely} were confirmed and {maybe} attempted"
    for event in story.of("booked"):
        if event["imbalance"] < 0 and not any(
            removal.resets and 0 <= event["time"] - removal.time <= _NOTICED_S for removal in story.removals
        ):
            yield f"{-event['imbalance']} outcomes more than entries, though no stream was replaced"


def _lost_is_what_was_removed(story: Story) -> Iterator[str]:
    valve, dropped = story.ledger.get("lost:valve", 0), sum(entries for _, entries in story.valve_drops)
    if valve > dropped:
        yield f"{valve} are booked as dropped by the valve, but learners dropped only {dropped}"
    lost, removed = story.ledger.get(Outcome.LOST, 0), sum(r.entries for r in story.removals)
    if lost > removed:
        yield f"{lost} are booked as lost, but only {removed} were removed"


def _each_entry_counts_once(story: Story) -> Iterator[str]:
    times = Counter(entry_id for outcome in story.counted.values() for entry_id in outcome.elements())
    for entry_id, n in times.items():
        if n > 1:
            yield f"entry {entry_id} was counted {n} times"


def _nothing_is_trained_twice(story: Story) -> Iterator[str]:
    """Within the ancestors of any learner process: those its checkpoint came from, up to that update."""
    told: set[Rollout] = set()
    for process in story.processes:
        times = Counter(r for _, trained in story.trained_in_lineage(process) for r in trained)
        twice = {rollout for rollout, n in times.items() if n > 1} - told
        told |= twice
        yield from (
            f"rollout {boot}:{seq} was trained {times[boot, seq]} times" for boot, seq in sorted(twice)
        )


def _nothing_too_old_is_trained(story: Story, max_staleness: int) -> Iterator[str]:
    for event in story.of("trained"):
        ancestors = story.lineage(event["process"])
        for _, boot, seq, epoch, _, update in event["rollouts"]:
            staleness = event["at"] - update
            if not 0 <= staleness <= max_staleness:
                yield f"rollout {boot}:{seq} was trained {staleness} updates old, limit {max_staleness}"
            owner = story.owner_of_epoch.get(epoch)
            if owner not in ancestors:
                yield f"rollout {boot}:{seq} is of epoch {epoch}, which is none of this lineage"
            elif update > ancestors[owner]:
                yield f"rollout {boot}:{seq} is of update {update} of an abandoned lineage"


def _what_is_trained_was_produced(story: Story) -> Iterator[str]:
    for event in story.of("trained"):
        for _, boot, seq, *weights in event["rollouts"]:
            produced = story.produced.get((boot, seq))
            if produced is None:
                yield f"rollout {boot}:{seq} was trained, but nobody produced it"
            elif produced != tuple(weights):
                yield f"rollout {boot}:{seq} was trained as of {weights}, but is of {list(produced)}"


def _epochs_are_taken_once(story: Story) -> Iterator[str]:
    highest = 0
    for event in story.of("acquired"):
        if event["epoch"] <= highest:
            yield f"epoch {event['epoch']} was acquired after epoch {highest}"
        highest = max(highest, event["epoch"])


def _versions_rise(story: Story) -> Iterator[str]:
    """In the order of epochs; and for each reader in the order of its reading."""
    published = sorted(story.published)
    for (_, before), (epoch, version) in pairwise(published):
        if version <= before:
            yield f"version {version} of epoch {epoch} does not follow version {before}"
    held: dict[str, Pair] = {}
    for event in story.of("read"):
        pair = (event["epoch"], event["version"])
        before_it = held.get(event["process"], pair)
        held[event["process"]] = pair
        if pair != before_it and (pair[0] < before_it[0] or pair[1] <= before_it[1]):
            yield f"a reader went from {before_it} back to {pair}"


def _nobody_publishes_after_a_takeover(story: Story) -> Iterator[str]:
    acquired = [(event["time"], event["epoch"]) for event in story.of("acquired")]
    for began, (epoch, version) in story.publications:
        if any(time < began and taken > epoch for time, taken in acquired):
            yield f"version {version} of epoch {epoch} was published after a later epoch had begun"


def _what_is_read_was_published(story: Story) -> Iterator[str]:
    for event in story.of("read"):
        pair = event["epoch"], event["version"]
        if event["digest"] not in story.digests_of(pair):
            yield f"{event['service']} read {pair} with arrays that nobody published under it"


def _rollouts_are_accounted_for(story: Story) -> Iterator[str]:
    """A confirmed push is trained on, dropped or waiting; else it was taken, and is lost in the books.

    So is one that was trained on, but whose entry was taken before its outcome could be recorded.
    """
    missing = sorted(time for rollout, time in story.confirmed.items() if rollout not in story.decided)
    unsettled = story.attempted[Outcome.TRAINED] - story.settled_ids - story.waiting_ids
    unconfirmed = story.ledger.get(Outcome.TRAINED, 0) - len(story.counted[Outcome.TRAINED])
    taken = [story.time_of(entry_id) for entry_id in unsettled]
    unconfirmed = max(unconfirmed, min(0, unconfirmed + story.forgotten[Outcome.TRAINED]))
    lost = sum(not story.is_unseen(time, _LOOK_S) for time in [*missing, *taken]) - unconfirmed
    if lost > (booked := story.ledger.get(Outcome.LOST, 0)):
        yield f"{lost} rollouts have no outcome, but only {booked} are booked as lost"
    since = float("-inf")  # what was confirmed after a removal can only be taken by later ones
    for index, removal in enumerate(story.removals):
        later = len(missing) - bisect_left(missing, since)
        removable = sum(r.entries for r in story.removals[index:])
        if later > removable:
            yield f"{later} confirmed pushes vanished since {since:.1f}, only {removable} were removed"
        since = removal.time + SAME_MOMENT_S
    if unexplained := len(missing) - bisect_left(missing, since):
        yield f"{unexplained} confirmed pushes vanished after the last removal"


def describe(events: Iterable[Event]) -> dict[str, Any]:
    """Numbers of a run for its report."""
    story = Story(events)
    return {
        "produced": len(story.produced),
        "confirmed": len(story.confirmed),
        "ambiguous": len(story.of("ambiguous")),
        "updates": len(story.of("trained")),
        "learner processes": len(story.processes),
        "epochs": len(story.owner_of_epoch),
        "publications": len(story.published),
        "weights read": len(story.of("read")),
        "removed": sum(removal.entries for removal in story.removals),
        "removed by the valve": sum(entries for _, entries in story.valve_drops),
        **{str(outcome): story.ledger.get(outcome, 0) for outcome in Outcome},
        "imbalance": None if story.final is None else story.final["imbalance"],
    }
