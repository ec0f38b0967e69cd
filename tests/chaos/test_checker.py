"""The checker accepts sound histories written by hand, and finds every broken promise."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.story import Event, parse

LIMIT = 2


class HistoryWriter:
    """Writes a history, one event each tenth of a second."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: str, process: str, **values: Any) -> None:
        time = len(self.events) / 10
        self.events.append({"event": event, "time": time, "process": process, "service": "x", **values})

    def leads(self, epoch: int, process: str = "L1", update: int = 0) -> None:
        self.add("acquired", process, epoch=epoch, update=update)

    def publishes(self, epoch: int, version: int, end: str = "published", process: str = "L1") -> None:
        self.add("publishing", process, epoch=epoch, version=version, update=0, digest=f"d{version}")
        if end:
            self.add(end, process, epoch=epoch, version=version)

    def reads(self, epoch: int, version: int, digest: str = "", process: str = "A1") -> None:
        self.add("read", process, epoch=epoch, version=version, digest=digest or f"d{version}")

    def pushes(self, *seqs: int, epoch: int = 1, update: int = 0, confirmed: bool = True) -> None:
        for seq in seqs:
            self.add("produced", "A1", boot="b", seq=seq, epoch=epoch, version=1, update=update)
            if confirmed:
                self.add("confirmed", "A1", boot="b", seq=seq, id=f"{seq}-0")

    def trains(
        self, *seqs: int, at: int = 0, epoch: int = 1, update: int = 0, counts: object = True,
        process: str = "L1",
    ) -> None:  # fmt: skip
        rollouts = [(f"{seq}-0", "b", seq, epoch, 1, update) for seq in seqs]
        self.add("trained", process, at=at, rollouts=rollouts)
        if counts is not None:
            self.settles("trained", *seqs, counts=counts, process=process)

    def drops(self, seq: int, outcome: str, process: str = "L1") -> None:
        self.add("dropped", process, id=f"{seq}-0", boot="b", seq=str(seq), outcome=outcome, reason="")
        self.settles(outcome, seq, process=process)

    def settles(self, outcome: str, *seqs: int, counts: object = True, process: str = "L1") -> None:
        self.add("settled", process, entries=[(f"{seq}-0", outcome, counts) for seq in seqs])

    def drops_by_valve(self, asked: int, dropped: int | None) -> None:
        self.add("trimming", "L1", entries=asked)
        if dropped is not None:
            self.add("trimmed", "L1", entries=dropped)

    def ends(
        self, waiting: tuple[int, ...] = (), imbalance: int = 0, valve: int = 0, **ledger: int
    ) -> list[Event]:
        entries = [(f"{seq}-0", "b", str(seq)) for seq in waiting]
        added = sum(ledger.values()) + len(waiting)
        books = {
            "ledger": {**ledger, "lost:valve": valve},
            "entries_added": added,
            "backlog": len(waiting),
            "imbalance": imbalance,
        }
        self.add("final", "injector", entries=entries, **books)
        return self.events


def sound() -> HistoryWriter:
    """A run of one learner that has trained on one rollout; another one waits."""
    told = HistoryWriter()
    told.leads(1)
    told.publishes(1, 1)
    told.reads(1, 1)
    told.pushes(1, 2)
    told.trains(1)
    return told


def test_a_sound_run_is_clean() -> None:
    assert check(sound().ends(waiting=(2,), trained=1), LIMIT) == []


class TestWhatFaultsMayDo:
    def test_an_entry_of_a_killed_learner_is_trained_again_by_the_next(self) -> None:
        told = sound()
        told.add("saved", "L1", update=1, epoch=1)
        told.trains(2, at=1, counts=None)
        told.leads(2, "L2", update=1)
        told.add("resumed", "L2", update=1, epoch=1, version=1)
        told.trains(2, at=1, process="L2")
        assert check(told.ends(trained=2), LIMIT) == []

    def test_a_settle_whose_reply_was_lost_counts_without_having_been_confirmed(self) -> None:
        told = sound()
        told.trains(2, at=1, counts=False)
        assert check(told.ends(trained=2), LIMIT) == []

    def test_removed_entries_are_lost_also_when_they_were_trained(self) -> None:
        told = sound()
        told.add("removed", "injector", entries=1, resets=False)
        told.trains(2, at=1, counts=False)
        told.add("booked", "L1", imbalance=1)
        assert check(told.ends(trained=1, lost=1), LIMIT) == []

    def test_a_server_takes_with_it_what_was_in_its_stream(self) -> None:
        told = sound()
        told.add("removed", "injector", entries=None, resets=True)
        assert check(told.ends(trained=1, lost=1), LIMIT) == []

    def test_entries_added_just_before_a_server_died_are_in_no_ledger(self) -> None:
        told = sound()
        told.add("removed", "injector", entries=None, resets=True)
        assert check(told.ends(trained=1), LIMIT) == []

    @pytest.mark.parametrize(("asked", "dropped"), [(100, 1), (1, None)], ids=["", "the reply was lost"])
    def test_rollouts_that_the_valve_dropped_are_lost(self, asked: int, dropped: int | None) -> None:
        told = sound()
        told.drops_by_valve(asked, dropped)
        assert check(told.ends(trained=1, lost=1, valve=1), LIMIT) == []

    def test_the_ledger_continues_from_the_checkpoint_if_server_and_learner_died_together(self) -> None:
        told = sound()
        told.add("saved", "L1", update=1, epoch=1)
        told.trains(2, at=1)
        told.add("removed", "injector", entries=0, resets=True)
        told.leads(2, "L2", update=1)
        told.add("resumed", "L2", update=1, epoch=1, version=1)
        assert check(told.ends(trained=1), LIMIT) == []

    def test_weights_whose_publishing_was_not_confirmed_may_be_read(self) -> None:
        told = sound()
        told.publishes(1, 2, end="")
        told.reads(1, 2)
        told.publishes(1, 3)
        assert check(told.ends(waiting=(2,), trained=1), LIMIT) == []

    def test_a_rollout_that_was_sent_twice_is_dropped_once(self) -> None:
        told = sound()
        told.add("ambiguous", "A1", boot="b", seq=2)
        told.drops(2, "duplicate")
        assert check(told.ends(trained=1, duplicate=1), LIMIT) == []


def _twice_in_one_process(told: HistoryWriter) -> list[Event]:
    told.trains(1, at=1, counts=False)
    return told.ends(waiting=(2,), trained=1)


def _twice_over_a_restart(told: HistoryWriter) -> list[Event]:
    told.leads(2, "L2", update=1)
    told.add("resumed", "L2", update=1, epoch=1, version=1)
    told.trains(1, at=1, counts=False, process="L2")
    return told.ends(waiting=(2,), trained=1)


def _too_old(told: HistoryWriter) -> list[Event]:
    told.trains(2, at=3)
    return told.ends(trained=2)


def _from_the_future(told: HistoryWriter) -> list[Event]:
    told.pushes(3, update=5)
    told.trains(3, at=1, update=5)
    return told.ends(waiting=(2,), trained=2)


def _of_an_abandoned_lineage(told: HistoryWriter) -> list[Event]:
    told.pushes(3, update=2)
    told.leads(2, "L2", update=1)
    told.add("resumed", "L2", update=1, epoch=1, version=1)
    told.trains(3, at=2, update=2, process="L2")
    return told.ends(waiting=(2,), trained=2)


def _of_nobody(told: HistoryWriter) -> list[Event]:
    told.trains(7, at=1)
    return told.ends(waiting=(2,), trained=2)


def _with_other_weights_than_claimed(told: HistoryWriter) -> list[Event]:
    told.trains(2, at=1, update=1)
    return told.ends(trained=2)


def _lost_without_a_removal(told: HistoryWriter) -> list[Event]:
    return told.ends(trained=1, lost=1)


def _more_lost_than_removed(told: HistoryWriter) -> list[Event]:
    told.pushes(3)
    told.add("removed", "injector", entries=1, resets=False)
    return told.ends(trained=1, lost=2)


def _a_valve_that_nobody_opened(told: HistoryWriter) -> list[Event]:
    told.add("removed", "injector", entries=1, resets=False)
    return told.ends(trained=1, lost=1, valve=1)


def _more_lost_than_the_valve_dropped(told: HistoryWriter) -> list[Event]:
    told.pushes(3)
    told.drops_by_valve(100, 1)
    return told.ends(trained=1, lost=2, valve=1)


def _vanished_after_the_valve(told: HistoryWriter) -> list[Event]:
    told.drops_by_valve(100, 2)
    for _ in range(10):
        told.add("pause", "injector")
    told.pushes(3)
    return told.ends(waiting=(2,), trained=1, lost=1, valve=1)


def _trained_without_an_outcome(told: HistoryWriter) -> list[Event]:
    told.trains(2, at=1, counts=False)
    return told.ends(trained=1)


def _vanished_after_the_last_removal(told: HistoryWriter) -> list[Event]:
    told.add("removed", "injector", entries=2, resets=False)
    for _ in range(10):
        told.add("pause", "injector")
    told.pushes(3)
    return told.ends(waiting=(2,), trained=1, lost=1)


def _an_outcome_forgotten_though_it_was_saved(told: HistoryWriter) -> list[Event]:
    told.trains(2, at=1)
    told.add("saved", "L1", update=2, epoch=1)
    told.add("removed", "injector", entries=0, resets=True)
    told.leads(2, "L2", update=2)
    return told.ends(trained=1)


def _an_outcome_forgotten_though_the_server_lived(told: HistoryWriter) -> list[Event]:
    told.trains(2, at=1)
    told.leads(2, "L2", update=1)
    return told.ends(trained=1)


def _counted_twice(told: HistoryWriter) -> list[Event]:
    told.settles("trained", 1)
    return told.ends(waiting=(2,), trained=2)


def _a_ledger_above_what_was_tried(told: HistoryWriter) -> list[Event]:
    return told.ends(waiting=(2,), trained=2)


def _books_that_do_not_add_up(told: HistoryWriter) -> list[Event]:
    events = told.ends(waiting=(2,), trained=1)
    events[-1]["entries_added"] += 1
    return events


def _an_imbalance(told: HistoryWriter) -> list[Event]:
    return told.ends(waiting=(2,), imbalance=1, trained=1)


def _books_that_did_not_balance_for_a_moment(told: HistoryWriter) -> list[Event]:
    told.add("looked", "injector", imbalance=-1)
    return told.ends(waiting=(2,), trained=1)


def _more_outcomes_than_entries(told: HistoryWriter) -> list[Event]:
    told.add("booked", "L1", imbalance=-1)
    return told.ends(waiting=(2,), trained=1)


def _a_version_that_falls(told: HistoryWriter) -> list[Event]:
    told.publishes(1, 2)
    told.leads(2, "L2")
    told.publishes(2, 2, process="L2")
    return told.ends(waiting=(2,), trained=1)


def _a_reader_that_goes_back(told: HistoryWriter) -> list[Event]:
    told.publishes(1, 2)
    told.reads(1, 2)
    told.reads(1, 1)
    return told.ends(waiting=(2,), trained=1)


def _a_torn_pair(told: HistoryWriter) -> list[Event]:
    told.publishes(1, 2)
    told.reads(1, 2, digest="d1")
    return told.ends(waiting=(2,), trained=1)


def _a_refused_pair_that_was_read(told: HistoryWriter) -> list[Event]:
    told.publishes(1, 2, end="refused")
    told.reads(1, 2)
    return told.ends(waiting=(2,), trained=1)


def _a_publication_after_a_takeover(told: HistoryWriter) -> list[Event]:
    told.leads(2, "L2")
    told.publishes(1, 2)
    return told.ends(waiting=(2,), trained=1)


def _an_epoch_taken_twice(told: HistoryWriter) -> list[Event]:
    told.leads(1, "L2")
    return told.ends(waiting=(2,), trained=1)


def _a_hole(told: HistoryWriter) -> list[Event]:
    told.add("confirmed", "A1", boot="b", seq=2, id="2-0", missed=1)
    return told.ends(waiting=(2,), trained=1)


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (_twice_in_one_process, "rollout b:1 was trained 2 times"),
        (_twice_over_a_restart, "rollout b:1 was trained 2 times"),
        (_too_old, "rollout b:2 was trained 3 updates old, limit 2"),
        (_from_the_future, "rollout b:3 was trained -4 updates old"),
        (_of_an_abandoned_lineage, "rollout b:3 is of update 2 of an abandoned lineage"),
        (_of_nobody, "rollout b:7 was trained, but nobody produced it"),
        (_with_other_weights_than_claimed, "rollout b:2 was trained as of [1, 1, 1], but is of [1, 1, 0]"),
        (_lost_without_a_removal, "1 are booked as lost, but only 0 were removed"),
        (_more_lost_than_removed, "2 are booked as lost, but only 1 were removed"),
        (_a_valve_that_nobody_opened, "1 are booked as dropped by the valve, but learners dropped only 0"),
        (_more_lost_than_the_valve_dropped, "2 are booked as lost, but only 1 were removed"),
        (_vanished_after_the_valve, "1 confirmed pushes vanished after the last removal"),
        (_trained_without_an_outcome, "1 rollouts have no outcome, but only 0 are booked as lost"),
        (lambda told: told.ends(trained=1), "1 rollouts have no outcome, but only 0 are booked as lost"),
        (_vanished_after_the_last_removal, "1 confirmed pushes vanished after the last removal"),
        (_an_outcome_forgotten_though_it_was_saved, "1 trained; 2 were confirmed"),
        (_an_outcome_forgotten_though_the_server_lived, "1 trained; 2 were confirmed"),
        (_counted_twice, "entry 1-0 was counted 2 times"),
        (_a_ledger_above_what_was_tried, "the ledger has 2 trained; 1 were confirmed and 1 attempted"),
        (lambda told: told.ends(waiting=(2,)), "the ledger has 0 trained; 1 were confirmed and 1 attempted"),
        (_books_that_do_not_add_up, "3 entries, but 1 outcomes + 1 waiting"),
        (_an_imbalance, "the last imbalance is 1"),
        (_books_that_did_not_balance_for_a_moment, "was -1 at a look while nobody interfered"),
        (_more_outcomes_than_entries, "1 outcomes more than entries"),
        (_a_version_that_falls, "version 2 of epoch 2 does not follow version 2"),
        (_a_reader_that_goes_back, "a reader went from (1, 2) back to (1, 1)"),
        (_a_torn_pair, "read (1, 2) with arrays that nobody published under it"),
        (_a_refused_pair_that_was_read, "read (1, 2) with arrays that nobody published under it"),
        (_a_publication_after_a_takeover, "version 2 of epoch 1 was published after a later epoch had begun"),
        (_an_epoch_taken_twice, "epoch 1 was acquired after epoch 1"),
        (_a_hole, "could not write 1 events"),
        (lambda told: told.events, "no final state"),
    ],
)
def test_a_broken_promise_is_named(lie: Callable[[HistoryWriter], list[Event]], sentence: str) -> None:
    assert sentence in "\n".join(check(lie(sound()), LIMIT))


def test_a_torn_last_line_is_passed_over() -> None:
    assert [event["seq"] for event in parse(['{"event":"produced","seq":1}', '{"event":"prod'])] == [1]
