"""The ledger: every rollout has one recorded outcome, and vanished ones are counted as lost."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.protocol.ledger import Ledger, LedgerAudit, LedgerBalance, Outcome, Settlement


def make_audit(*, last_entries_added: int = 0, **counts: int) -> LedgerAudit:
    return LedgerAudit(Ledger(dict(counts)), last_entries_added)


class TestLedger:
    def test_outcome_reason_and_steps_are_counted_under_names_that_can_be_read(self) -> None:
        ledger = Ledger()
        ledger.add(Outcome.REFUSED, "shape", steps=8)
        ledger.add(Outcome.REFUSED, "crc")
        assert ledger.counts == {"refused": 2, "refused:shape": 1, "refused:crc": 1, "steps:refused": 8}

    def test_an_outcome_is_stored_as_its_plain_name(self) -> None:
        assert sorted(Outcome) == ["duplicate", "lost", "refused", "stale", "trained"]

    def test_settled_counts_each_rollout_once_for_every_reason(self) -> None:
        ledger = Ledger({"trained": 3, "refused": 2, "refused:shape": 2, "steps:trained": 24, "lost": 1})
        assert ledger.settled == 6

    def test_settled_steps_are_the_steps_of_every_outcome(self) -> None:
        ledger = Ledger({"trained": 3, "steps:trained": 24, "steps:stale": 8, "steps:refused": 1})
        assert ledger.settled_steps == 33

    def test_a_count_never_falls_by_merging(self) -> None:
        ledger = Ledger({"trained": 5, "stale": 1})
        ledger.merge({"trained": 3, "stale": 2, "lost": 1})
        assert ledger.counts == {"trained": 5, "stale": 2, "lost": 1}

    def test_reasons_name_what_was_dropped_most_first_and_no_steps(self) -> None:
        ledger = Ledger(
            {"refused": 4, "refused:crc": 1, "refused:shape": 3, "steps:stale": 9, "lost:reset": 2}
        )
        assert list(ledger.reasons()) == [("refused:shape", 3), ("lost:reset", 2), ("refused:crc", 1)]

    def test_counts_can_be_read_in_one_thread_while_another_adds_new_ones(self) -> None:
        ledger, writing = Ledger(), True
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)

        def write() -> None:
            for number in range(20_000):
                ledger.add(Outcome.REFUSED, f"reason {number}", steps=1)

        try:
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(write)
                while writing:
                    writing = not future.done()
                    assert ledger.settled_steps <= ledger.settled
        finally:
            sys.setswitchinterval(interval_s)


class TestAudit:
    def test_a_balanced_ledger_counts_no_loss(self) -> None:
        books = make_audit(trained=3, stale=1)
        balance = books.audit(entries_added=6, backlog=2)
        assert (balance.entries_added, balance.backlog, balance.imbalance) == (6, 2, 0)
        assert books.ledger.of(Outcome.LOST) == 0

    def test_entries_that_vanished_from_a_stream_are_lost_unexplained(self) -> None:
        books = make_audit(trained=3, last_entries_added=10)
        assert books.audit(entries_added=10, backlog=2).imbalance == 5
        assert books.ledger.counts == {"trained": 3, "lost": 5, "lost:unexplained": 5}
        assert books.audit(entries_added=10, backlog=2).imbalance == 0

    def test_entries_that_vanished_with_their_stream_are_lost_by_reset(self) -> None:
        books = make_audit(trained=3, last_entries_added=10)
        assert books.audit(entries_added=0, backlog=0).entries_added == 10
        assert books.ledger.counts == {"trained": 3, "entries_before": 10, "lost": 7, "lost:reset": 7}

    def test_a_new_stream_is_known_although_it_has_already_counted_further_than_the_old_one(self) -> None:
        books = make_audit(trained=3, last_entries_added=3)
        books.stream_is_new = True
        books.audit(entries_added=5, backlog=5)
        assert books.ledger.counts == {"trained": 3, "entries_before": 3}
        assert books.audit(entries_added=5, backlog=5).imbalance == 0

    def test_entries_settled_between_two_audits_of_a_stream_that_was_deleted_are_not_lost(self) -> None:
        books = make_audit(trained=12, last_entries_added=10)
        books.stream_is_new = True
        balance = books.audit(entries_added=0, backlog=0)
        assert balance.imbalance == -2
        assert books.ledger.counts == {"trained": 12, "entries_before": 12}
        assert books.audit(entries_added=0, backlog=0).imbalance == 0

    def test_a_reset_that_a_predecessor_has_booked_since_the_checkpoint_is_not_booked_again(self) -> None:
        books = LedgerAudit(Ledger({"trained": 8}), last_entries_added=10)  # of the checkpoint
        books.ledger.merge({"trained": 9, "entries_before": 12, "lost": 3})  # of Redis, as it was left
        balance = books.audit(entries_added=4, backlog=4)
        assert balance.imbalance == 0
        assert books.ledger.counts == {"trained": 9, "entries_before": 12, "lost": 3}

    def test_a_second_reset_adds_to_the_first(self) -> None:
        books = make_audit(last_entries_added=4)
        books.audit(entries_added=0, backlog=0)
        books.audit(entries_added=3, backlog=3)
        books.stream_is_new = True
        books.audit(entries_added=1, backlog=1)
        assert books.ledger.counts == {"entries_before": 7, "lost": 7, "lost:reset": 7}

    def test_entries_that_a_restarted_server_with_older_data_forgot_are_lost(self) -> None:
        books = make_audit(trained=6, last_entries_added=10)  # 4 were waiting
        balance = books.audit(entries_added=8, backlog=2)  # two of them are gone
        assert books.ledger.counts == {"trained": 6, "entries_before": 2, "lost": 2, "lost:rolled_back": 2}
        assert balance.entries_added == 10
        assert books.audit(entries_added=8, backlog=2).imbalance == 0

    def test_settled_rollouts_that_came_back_are_counted_again_with_their_new_outcome(self) -> None:
        books = make_audit(trained=6, last_entries_added=6)
        books.audit(entries_added=5, backlog=3)  # the last addition and the last four settlements are undone
        assert books.ledger.counts == {"trained": 6, "entries_before": 4}
        books.ledger.add(Outcome.DUPLICATE, entries=3)
        assert books.audit(entries_added=5, backlog=0).imbalance == 0


class TestAdoption:
    """The counts that a learner adopts from the ledger in Redis."""

    def test_the_first_audit_takes_over_a_predecessors_counts(self) -> None:
        books = make_audit(trained=3, last_entries_added=10)
        assert books.adopt({"trained": 7, "steps:trained": 56}, entries_added=10, backlog=3)
        assert books.ledger.counts == {"trained": 7, "steps:trained": 56}

    def test_later_audits_ignore_an_outsiders_count(self) -> None:
        books = make_audit(trained=3)
        books.adopt({"trained": 3}, entries_added=3, backlog=0)
        assert not books.adopt({"trained": 99_999_999, "stale": 5}, entries_added=3, backlog=0)
        assert books.ledger.counts == {"trained": 3}

    def test_the_first_audit_ignores_counts_above_the_entries_added(self) -> None:
        books = make_audit(trained=3, last_entries_added=4)
        assert not books.adopt({"trained": 5}, entries_added=6, backlog=2)
        assert books.ledger.counts == {"trained": 3}

    def test_only_a_settle_whose_reply_was_lost_is_adopted_from_redis(self) -> None:
        books = make_audit(trained=3)
        books.adopt({}, entries_added=3, backlog=0)
        books.doubts = {b"1-1": Settlement(b"1-1", Outcome.TRAINED, steps=8)}
        assert not books.adopt({"trained": 9, "steps:trained": 8}, entries_added=9, backlog=0)
        assert books.ledger.counts == {"trained": 4, "steps:trained": 8}


class Stream:
    """A simple model of a stream and the learner's ledger."""

    def __init__(self) -> None:
        self.added = 0
        self.waiting = 0
        self.ever = 0
        self.older = (0, 0)  # what a replica may have: (added, waiting) of an earlier moment
        self.ledger_audit = LedgerAudit(Ledger())

    def act(self, action: str, count: int) -> None:
        if action == "add":
            self.added += count
            self.ever += count
            self.waiting += count
        elif action == "settle":
            taken = min(count, self.waiting)
            self.waiting -= taken
            self.ledger_audit.ledger.add(Outcome.TRAINED, entries=taken)
        elif action == "trim":
            self.waiting -= min(count, self.waiting)
        elif action == "remember":
            self.older = (self.added, self.waiting)
        elif action == "roll back":
            self.added, self.waiting = self.older
            self.older = (0, 0)
        elif action in ("reset", "reset unseen"):
            self.older = (0, 0)
            if action == "reset":
                self.audit()  # the keeper's last look, and nothing happened since
            self.added = self.waiting = 0
            self.ledger_audit.stream_is_new = True
        else:
            self.audit()

    def audit(self) -> None:
        self.ledger_audit.audit(self.added, self.waiting)


SEEN = ("add", "settle", "trim", "reset", "audit")


def histories(*actions: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(actions), st.integers(1, 9)), max_size=40)


def play(actions: list[tuple[str, int]]) -> tuple[Stream, LedgerBalance]:
    """The stream after all actions, and the result of a second audit."""
    stream = Stream()
    for action, count in actions:
        stream.act(action, count)
    stream.audit()
    return stream, stream.ledger_audit.audit(stream.added, stream.waiting)


@given(histories(*SEEN))
def test_every_rollout_ever_added_has_an_outcome_or_waits(actions: list[tuple[str, int]]) -> None:
    stream, balance = play(actions)
    assert balance.imbalance == 0
    assert balance.entries_added == stream.ever
    assert stream.ever == stream.ledger_audit.ledger.settled + stream.waiting


@given(histories(*SEEN, "reset unseen", "remember", "roll back"))
def test_the_ledger_balances_also_if_a_server_forgot_entries_before_the_first_audit(
    actions: list[tuple[str, int]],
) -> None:
    stream, balance = play(actions)
    assert balance.imbalance == 0
    assert balance.entries_added == stream.ledger_audit.ledger.settled + stream.waiting


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_counts_towards_the_balance(outcome: Outcome) -> None:
    counts: dict[str, Any] = {outcome.value: 4}
    assert make_audit(**counts).audit(entries_added=5, backlog=1).imbalance == 0
