"""A rollout's life at the learner as a table, and the real intake on a real stream held to it.

Actors send; the learner polls, trains, loses replies, loses its group, and is replaced, in whatever
order. Each entry goes from state to state as the table says, ends settled once, and no rollout is
trained twice.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import GROUP, RunKeys
from dppo_redis.store.pending import StreamEntry
from dppo_redis.store.rollout_stream import RolloutConsumer
from learner.intake.batch_rule import BatchRule, ElasticBatch, LockStepBatch
from learner.intake.intake import AcceptedRollout, Intake
from tests.integration.learner_side import SPEC, STEPS, add, lead, make_entry
from tests.integration.looking import imbalance, ledger_of, pending

UPDATE = 10  # of the learner, all the time
SLOTS = st.integers(0, 1)


class State(Enum):
    """The state of an entry in one learner process."""

    WAITING = "in the stream, and not opened by this process"
    OPENED = "delivered, and being judged"
    DROPPED = "judged not to be trained on; its outcome is not recorded"
    IN_HAND = "accepted, and waiting for its batch"
    TRAINING = "in a batch that was handed over"
    SETTLED = "its outcome is recorded, and it has left the stream"


class EntryEvent(Enum):
    """The events that may happen to an entry."""

    DELIVERED = "the stream delivers it, for the first time or again"
    DROPPED = "it is stale, a duplicate, broken, or not wanted in its batch"
    ACCEPTED = "it passes every check"
    HANDED_OVER = "its batch is full"
    SETTLED = "its outcome is recorded"
    ORPHANED = "the learner process ends"


S, H = State, EntryEvent
NEXT: dict[tuple[State, EntryEvent], State] = {
    (S.WAITING, H.DELIVERED): S.OPENED,
    (S.WAITING, H.ORPHANED): S.WAITING,
    (S.OPENED, H.DELIVERED): S.OPENED,  # opening it failed for a reason outside of it: judged anew
    (S.OPENED, H.DROPPED): S.DROPPED,
    (S.OPENED, H.ACCEPTED): S.IN_HAND,
    (S.OPENED, H.ORPHANED): S.WAITING,
    (S.DROPPED, H.SETTLED): S.SETTLED,
    (S.DROPPED, H.ORPHANED): S.WAITING,
    (S.IN_HAND, H.DELIVERED): S.IN_HAND,  # ignored
    (S.IN_HAND, H.DROPPED): S.DROPPED,  # surplus of a lock-step batch
    (S.IN_HAND, H.HANDED_OVER): S.TRAINING,
    (S.IN_HAND, H.ORPHANED): S.WAITING,
    (S.TRAINING, H.DELIVERED): S.TRAINING,  # ignored
    (S.TRAINING, H.SETTLED): S.SETTLED,
    (S.TRAINING, H.ORPHANED): S.WAITING,
    (S.SETTLED, H.DELIVERED): S.OPENED,  # the server went back to an older file: a duplicate
    (S.SETTLED, H.ORPHANED): S.SETTLED,
}
IMPOSSIBLE: dict[str, set[tuple[State, EntryEvent]]] = {
    "only what was just delivered is judged": {
        *((state, H.ACCEPTED) for state in (S.WAITING, S.DROPPED, S.IN_HAND, S.TRAINING, S.SETTLED)),
        *((state, H.DROPPED) for state in (S.WAITING, S.DROPPED, S.TRAINING, S.SETTLED)),
    },
    "a batch is made of what is in hand": {
        (state, H.HANDED_OVER) for state in (S.WAITING, S.OPENED, S.DROPPED, S.TRAINING, S.SETTLED)
    },
    "an outcome is decided before it is recorded, and recorded once": {
        (state, H.SETTLED) for state in (S.WAITING, S.OPENED, S.IN_HAND, S.SETTLED)
    },
    "nothing is read before the outcomes of the last read are recorded": {(S.DROPPED, H.DELIVERED)},
}


def test_the_table_says_of_every_state_and_happening_what_follows_or_why_it_cannot_be() -> None:
    every = set(itertools.product(State, EntryEvent))
    said = [*NEXT, *itertools.chain.from_iterable(IMPOSSIBLE.values())]
    assert len(said) == len(set(said))
    assert set(said) == every


def test_every_state_is_reached_and_left_towards_an_outcome() -> None:
    for state in State:
        reached, new = {state}, {state}
        while new:
            new = {after for (before, _), after in NEXT.items() if before in new} - reached
            reached |= new
        assert reached == set(State)


class RolloutLives(RuleBasedStateMachine):
    """The model beside the real intake; `Watched` and `settle` record the events of each entry."""

    def __init__(
        self, client: Client, keys: RunKeys, stop: StopRequest, make_rule: Callable[[], BatchRule]
    ) -> None:
        super().__init__()
        self.client, self.keys = client, keys
        self.make_rule = make_rule
        self.leadership = lead(client, keys, stop)
        self.states: dict[bytes, State] = {}
        self.sent: dict[bytes, dict[str, Any]] = {}
        self.outcomes: dict[bytes, str] = {}
        self.boots = itertools.count(1)
        self.newest: dict[int, dict[str, Any]] = {slot: self.first_of_a_boot(slot) for slot in (0, 1)}
        self.batch: list[AcceptedRollout] = []
        self.saved: dict[str, int] = {}
        self.has_lost_a_reply = False
        self.begin_process(LastSequenceNumbers())

    def record_event(self, entry_id: bytes, what: EntryEvent) -> None:
        self.states[entry_id] = NEXT[self.states[entry_id], what]

    def first_of_a_boot(self, slot: int) -> dict[str, Any]:
        return {"actor": slot, "boot": f"{next(self.boots):016x}", "seq": 0}

    def begin_process(self, last_sequence_numbers: LastSequenceNumbers) -> None:
        self.consumer = RolloutConsumer(self.client, self.keys, self.leadership.bookkeeper.restore_stream)
        self.intake = Intake(RecordedEntries(self), SPEC, self.settle, lambda *_: None, self.make_rule(), 4)
        self.intake.last_sequence_numbers = last_sequence_numbers
        self.consumer.claim_all()

    def settle(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if settlement.reason == "surplus" and self.states[settlement.entry_id] is S.IN_HAND:
                self.record_event(settlement.entry_id, H.DROPPED)
            self.record_event(settlement.entry_id, H.SETTLED)
            self.outcomes[settlement.entry_id] = settlement.reason or settlement.outcome.value
        self.leadership.bookkeeper.settle(settlements)

    def add(self, header: dict[str, Any]) -> None:
        (entry_id,) = add(self.client, self.keys, make_entry(**header))
        self.states[entry_id], self.sent[entry_id] = S.WAITING, header

    @rule(slot=SLOTS, fault=st.sampled_from([{}, {}, {}, {"update": 1}, {"crc": 1}]))
    def an_actor_sends(self, slot: int, fault: dict[str, int]) -> None:
        last = self.newest[slot]
        identity = {"actor": slot, "boot": last["boot"], "seq": last["seq"] + 1}
        self.newest[slot] = {"update": UPDATE, **identity, **fault}
        self.add(self.newest[slot])

    @precondition(lambda self: any(newest["seq"] for newest in self.newest.values()))
    @rule(slot=SLOTS)
    def an_actor_sends_its_newest_again(self, slot: int) -> None:
        """And whole this time."""
        if self.newest[slot]["seq"]:
            self.add({name: value for name, value in self.newest[slot].items() if name != "crc"})

    @rule(slot=SLOTS)
    def an_actor_restarts(self, slot: int) -> None:
        self.newest[slot] = self.first_of_a_boot(slot)

    @rule()
    def the_learner_polls(self) -> None:
        batch = self.intake.poll(UPDATE, lambda: self.leadership.lease.lineage)
        self.has_lost_a_reply = False
        for accepted in batch or []:
            self.record_event(accepted.entry_id, H.HANDED_OVER)
        self.batch += batch or []

    @precondition(lambda self: self.batch)
    @rule()
    def a_batch_is_trained(self) -> None:
        self.settle([Settlement(a.entry_id, Outcome.TRAINED, steps=STEPS) for a in self.batch])
        self.intake.settled(self.batch)
        self.batch = []
        self.saved = self.intake.settled_sequence_numbers().to_dict()

    @rule()
    def a_reply_is_lost(self) -> None:
        reading = self.consumer.read(3, 1, 1)
        next(reading, None)
        cast(Any, reading).close()
        self.has_lost_a_reply = True

    @rule()
    def the_group_is_lost(self) -> None:
        self.client.xgroup_destroy(self.keys.rollouts, GROUP)

    @precondition(lambda self: not self.has_lost_a_reply)  # deaths with an entry in hand: test_poison.py
    @rule()
    def another_process_resumes_from_the_checkpoint(self) -> None:
        """One is written between two updates."""
        if not self.batch:
            self.saved = self.intake.settled_sequence_numbers().to_dict()
        for entry_id in self.states:
            self.record_event(entry_id, H.ORPHANED)
        self.batch = []
        self.begin_process(LastSequenceNumbers(self.saved))

    @invariant()
    def accepted_rollouts_wait_for_their_batch(self) -> None:
        assert self.intake.gathered == list(self.states.values()).count(S.IN_HAND)

    @invariant()
    def unsettled_entries_are_in_the_stream(self) -> None:
        found = cast(list[tuple[bytes, Any]], self.client.xrange(self.keys.rollouts))
        assert [i for i, _ in found] == [i for i, state in self.states.items() if state is not S.SETTLED]

    def teardown(self) -> None:
        """Send and train until no entry is left, and check the ledger."""
        for attempt in range(100):
            self.the_learner_polls()
            if self.batch:
                self.a_batch_is_trained()
            elif set(self.states.values()) <= {S.SETTLED}:
                break
            elif S.WAITING not in self.states.values():
                self.an_actor_sends(attempt % 2, {})
        assert set(self.states.values()) <= {S.SETTLED}
        assert (imbalance(self.client, self.keys), pending(self.client, self.keys)) == (0, 0)
        ledger = ledger_of(self.client, self.keys)
        assert sum(ledger.get(outcome, 0) for outcome in Outcome) == len(self.sent) == len(self.outcomes)
        copies: dict[tuple[str, int], list[str]] = {}
        for entry_id, header in self.sent.items():
            copies.setdefault((header["boot"], header["seq"]), []).append(self.outcomes[entry_id])
        for outcomes in copies.values():
            decided = [outcome for outcome in outcomes if outcome not in ("crc", "duplicate")]
            assert len(decided) <= 1 or set(decided) == {"stale"}
            assert decided or set(outcomes) == {"crc"}


class RecordedEntries:
    """The entries of a process's consumer; tells the model what becomes of each."""

    def __init__(self, lives: RolloutLives) -> None:
        self._lives = lives
        self._consumer = lives.consumer

    def read(self, count: int, block_ms: int, at_once: int) -> Iterator[StreamEntry]:
        for entry in self._consumer.read(count, block_ms, at_once):
            self._lives.record_event(entry.id, H.DELIVERED)
            before = self._lives.intake.gathered
            yield entry
            if self._lives.states[entry.id] is S.OPENED:
                was_accepted = self._lives.intake.gathered > before
                self._lives.record_event(entry.id, H.ACCEPTED if was_accepted else H.DROPPED)

    def survived(self) -> None:
        self._consumer.survived()


RULES: dict[str, Callable[[], BatchRule]] = {
    "elastic": lambda: ElasticBatch(3 * STEPS, STEPS),
    "lock step": lambda: LockStepBatch(LockStep(actors=2, rollouts=2, segment_updates=100)),
}


@pytest.mark.parametrize("make_rule", RULES.values(), ids=list(RULES))
def test_every_entry_lives_by_the_table_and_every_rollout_is_trained_at_most_once(
    client: Client,
    keys: RunKeys,
    stop: StopRequest,
    monkeypatch: pytest.MonkeyPatch,
    make_rule: Callable[[], BatchRule],
) -> None:
    monkeypatch.setattr("learner.intake.intake.BLOCK_MS", 1)
    runs = itertools.count()
    run_state_machine_as_test(
        cast(Any, lambda: RolloutLives(client, RunKeys(f"{keys.run}-{next(runs)}"), stop, make_rule)),
        settings=settings(max_examples=15, stateful_step_count=40, deadline=None, phases=[Phase.generate]),
    )
