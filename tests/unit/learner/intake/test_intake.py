"""The intake judges, batches and refuses entries of any source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from dppo_redis.errors import WireError
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.store.client import TransientError
from dppo_redis.store.rollout_stream import StreamEntry
from learner.intake.batch_rule import ElasticBatch
from learner.intake.drops import DropsByActor
from learner.intake.intake import BLOCK_MS, AcceptedRollout, Intake
from tests.factories import make_header, make_rollout, make_spec

SPEC = make_spec()
STEPS = 8
LINEAGE = Lineage(((1, 0),))


def make_entry(number: int = 1, *, count: int = 2, **header: Any) -> StreamEntry:
    """Entry `number`; its rollout has `count` environments, 4 rows each."""
    rollout = make_rollout(SPEC, count=count)
    payload = encode_rollout(rollout)
    known = {"seq": number, "steps": rollout.steps, "crc": checksum(payload), **header}
    fields = {name.encode(): str(x).encode() for name, x in asdict(make_header(SPEC, **known)).items()}
    return StreamEntry(f"{number}-0".encode(), {**fields, b"payload": payload})


class Source:
    """Delivers given entries, `count` at a time, and records the requests."""

    def __init__(self, entries: Sequence[StreamEntry]) -> None:
        self.waiting = list(entries)
        self.asked: list[int] = []
        self.at_once: list[int] = []

    def read(self, count: int, block_ms: int, at_once: int) -> Iterable[StreamEntry]:
        assert block_ms == BLOCK_MS
        self.asked.append(count)
        self.at_once.append(at_once)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def survived(self) -> None:
        """No entry of these tests kills a process."""


class IntakeCase:
    """An intake with its source, its settlements and its quarantine."""

    def __init__(
        self,
        *entries: StreamEntry,
        batch_steps: int = 2 * STEPS,
        max_staleness: int = 4,
        planned: int = STEPS,
    ) -> None:
        self.source = Source(entries)
        self.settled: list[Settlement] = []
        self.refused: list[str] = []
        self.intake = Intake(
            self.source,
            SPEC,
            self.settled.extend,
            self._quarantine,
            ElasticBatch(batch_steps, planned),
            max_staleness,
        )

    def _quarantine(self, entry: StreamEntry, error: WireError) -> None:
        del entry
        self.refused.append(error.reason)

    def poll(self, update: int = 0) -> list[AcceptedRollout] | None:
        return self.intake.poll(update, lambda: LINEAGE)


class TestBatch:
    def test_a_batch_is_handed_over_once_it_is_full_in_order_of_arrival(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2), make_entry(3))
        batch = case.poll()
        assert batch is not None
        assert [accepted.header.seq for accepted in batch] == [1, 2]

    def test_rollouts_of_a_batch_that_is_not_full_are_kept_for_the_next_poll(self) -> None:
        case = IntakeCase(make_entry(1))
        assert case.poll() is None
        assert case.intake.gathered == 1
        case.source.waiting.append(make_entry(2))
        assert len(case.poll() or []) == 2
        assert case.intake.gathered == 0

    def test_rollouts_of_different_widths_fill_a_batch_by_their_steps(self) -> None:
        case = IntakeCase(make_entry(1, count=1), make_entry(2, count=3))
        assert [a.rollout.steps for a in case.poll() or []] == [4, 12]

    def test_nothing_that_is_accepted_is_settled_here(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2))
        case.poll()
        assert case.settled == []


class TestReadingBounds:
    def test_no_more_is_read_than_the_batch_lacks(self) -> None:
        case = IntakeCase(*[make_entry(n) for n in range(1, 100)], batch_steps=5 * STEPS)
        assert len(case.poll() or []) == 5
        assert case.source.asked == [5]

    def test_accepted_rollouts_reduce_the_number_to_read(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2), batch_steps=5 * STEPS)
        case.poll()
        case.poll()
        assert case.source.asked == [5, 3]

    def test_one_entry_at_least_is_asked_for(self) -> None:
        case = IntakeCase(batch_steps=1, planned=10_000)
        case.poll()
        assert case.source.asked == [1]

    def test_tiny_rollouts_are_read_a_few_hundred_at_a_time(self) -> None:
        case = IntakeCase(batch_steps=1_000_000, planned=1)
        case.poll()
        assert case.source.asked == [256]

    def test_large_rollouts_are_read_a_few_megabytes_at_a_time(self) -> None:
        """The sizes of dropped entries count, too, because a resumed learner may find a backlog of them."""
        fields = {**make_entry(1).fields, b"payload": bytes(2**24 - 2**10)}
        case = IntakeCase(StreamEntry(b"1-0", fields), batch_steps=10_000 * STEPS)
        case.poll()
        case.poll()
        assert case.source.asked[1] == 4
        assert case.refused == ["crc"]

    @pytest.mark.parametrize(("payload", "at_once"), [(1_000, 50), (20_000, 3), (100_000, 1)])
    def test_64_kilobytes_come_together(self, payload: int, at_once: int) -> None:
        fields = {**make_entry(1).fields, b"payload": bytes(payload)}
        case = IntakeCase(StreamEntry(b"1-0", fields), batch_steps=100 * STEPS)
        case.poll()
        case.poll()
        assert case.source.at_once[1] == pytest.approx(at_once, rel=0.2)

    def test_a_drop_makes_room_for_one_more(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(1), make_entry(2))
        assert case.poll() is None
        assert len(case.poll() or []) == 2
        assert case.source.asked == [2, 1]


class TestDrops:
    @pytest.mark.parametrize(
        ("entry", "update", "expected"),
        [
            (make_entry(1, update=3), 8, (Outcome.STALE, "", STEPS)),
            (make_entry(1, update=9), 8, (Outcome.REFUSED, "from_the_future", STEPS)),
            (make_entry(1, epoch=2), 0, (Outcome.REFUSED, "lost_lineage", STEPS)),
            (make_entry(1, crc=1), 0, (Outcome.REFUSED, "crc", 0)),
            (make_entry(1, steps=7), 0, (Outcome.REFUSED, "header", 0)),
            (StreamEntry(b"1-0", {}), 0, (Outcome.LOST, "", 0)),
        ],
        ids=["stale", "from the future", "lost lineage", "damaged", "lying", "trimmed"],
    )
    def test_each_drop_has_its_outcome_reason_and_steps(
        self, entry: StreamEntry, update: int, expected: tuple[Outcome, str, int]
    ) -> None:
        case = IntakeCase(entry)
        assert case.poll(update) is None
        assert [(s.outcome, s.reason, s.steps) for s in case.settled] == [expected]

    def test_drops_are_counted_by_actor_and_reason_for_any_name_of_an_actor(self) -> None:
        nameless = {**make_entry(3).fields, b"actor": b"3\n"}
        foreign = {**make_entry(1, actor=7).fields, b"spec": b"0" * 16}
        entries = [StreamEntry(b"1-0", foreign), StreamEntry(b"2-0", foreign)]
        case = IntakeCase(
            *entries, StreamEntry(b"3-0", nameless), make_entry(4, actor=5, update=9), batch_steps=80
        )
        case.poll()
        expected = (
            "actor 7: 2 refused:spec, actor unknown: 1 refused:header, actor 5: 1 refused:from_the_future"
        )
        assert case.intake.dropped_by_actor == expected

    def test_at_most_a_thousand_actors_are_counted_separately(self) -> None:
        drops, stale = DropsByActor(), Settlement(b"", Outcome.STALE)
        for actor in range(1010):
            drops.add(str(actor).encode(), stale)
        assert drops.text.startswith("actor others: 10 stale, actor 0: 1 stale")

    def test_staleness_4_is_accepted_and_5_is_not_when_the_limit_is_4(self) -> None:
        case = IntakeCase(make_entry(1, update=6), make_entry(2, update=5), make_entry(3, update=10))
        case.poll(update=10)
        assert [a.header.update for a in case.poll(update=10) or []] == [6, 10]
        assert [s.outcome for s in case.settled] == [Outcome.STALE]

    def test_with_limit_0_only_the_present_weights_are_accepted(self) -> None:
        case = IntakeCase(
            make_entry(1, update=9), make_entry(2, update=10), batch_steps=STEPS, max_staleness=0
        )
        case.poll(update=10)
        assert [a.header.update for a in case.poll(update=10) or []] == [10]

    def test_a_dropped_rollout_is_not_unpacked(self) -> None:
        entry = make_entry(1, update=0)
        case = IntakeCase(StreamEntry(entry.id, {**entry.fields, b"payload": b"no rollout at all"}))
        case.poll(update=9)
        assert [s.outcome for s in case.settled] == [Outcome.STALE]
        assert case.refused == []

    def test_only_what_is_broken_goes_into_quarantine(self) -> None:
        case = IntakeCase(make_entry(1, crc=1), make_entry(2, epoch=9), batch_steps=4 * STEPS)
        case.poll()
        assert case.refused == ["crc"]

    def test_good_rollouts_beside_a_bad_one_are_accepted(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2, crc=1), make_entry(3), batch_steps=2 * STEPS)
        case.poll()
        assert [a.header.seq for a in case.poll() or []] == [1, 3]


class TestDuplicates:
    def test_a_rollout_sent_twice_is_accepted_once(self) -> None:
        first, again = make_entry(1), make_entry(2, seq=1)
        case = IntakeCase(first, again, batch_steps=4 * STEPS)
        case.poll()
        assert case.intake.gathered == 1
        assert [(s.entry_id, s.outcome) for s in case.settled] == [(b"2-0", Outcome.DUPLICATE)]

    def test_the_second_copy_of_a_stale_rollout_is_a_duplicate(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2, seq=1), batch_steps=4 * STEPS)
        case.poll(update=9)
        assert [s.outcome for s in case.settled] == [Outcome.STALE, Outcome.DUPLICATE]

    def test_a_copy_that_arrives_whole_after_a_damaged_one_is_accepted(self) -> None:
        case = IntakeCase(make_entry(1, crc=1), make_entry(2, seq=1), batch_steps=4 * STEPS)
        case.poll()
        assert case.intake.gathered == 1

    def test_a_read_that_fails_half_way_forgets_nothing_that_came_before(self) -> None:
        class Failing(Source):
            def read(self, count: int, block_ms: int, at_once: int) -> Iterator[StreamEntry]:
                yield from super().read(count, block_ms, at_once)
                raise TransientError("the connection is gone")

        stale, fresh = make_entry(1, update=1), make_entry(2, update=10)
        case = IntakeCase(batch_steps=3 * STEPS)
        case.intake._entries = Failing([stale, fresh])
        with pytest.raises(TransientError):
            case.poll(update=10)
        assert [(s.entry_id, s.outcome) for s in case.settled] == [(b"1-0", Outcome.STALE)]
        case.intake._entries = Source([fresh, make_entry(3, update=10), make_entry(4, update=10)])
        assert case.poll(update=10) is None  # one of two is in hand
        assert [accepted.header.seq for accepted in case.poll(update=10) or []] == [2, 3, 4]

    def test_an_entry_in_hand_that_is_delivered_again_is_ignored(self) -> None:
        case = IntakeCase(make_entry(1), batch_steps=4 * STEPS)
        case.poll()
        case.source.waiting.append(make_entry(1))
        case.poll()
        assert case.intake.gathered == 1
        assert case.settled == []

    def test_an_entry_of_a_settled_batch_that_comes_back_is_a_duplicate(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2))
        case.intake.settled(case.poll() or [])
        case.source.waiting.append(make_entry(1))
        case.poll()
        assert [s.outcome for s in case.settled] == [Outcome.DUPLICATE]

    def test_the_sequence_numbers_of_a_checkpoint_show_which_rollouts_were_trained(self) -> None:
        case = IntakeCase(make_entry(5), make_entry(6), batch_steps=STEPS)
        case.intake.last_sequence_numbers = LastSequenceNumbers({make_header().boot: 5})
        case.poll()
        assert [s.outcome for s in case.settled] == [Outcome.DUPLICATE]


class TestSequenceNumbers:
    def test_rollouts_that_are_not_settled_do_not_count_as_trained_for_the_next_learner(self) -> None:
        case = IntakeCase(make_entry(1), make_entry(2), make_entry(3), make_entry(4), batch_steps=2 * STEPS)
        case.poll()  # 1 and 2: handed over
        case.poll()  # 3 and 4: handed over
        case.source.waiting += [make_entry(5), make_entry(6, boot="c" * 16, seq=1)]
        case.intake._rule = ElasticBatch(100 * STEPS, STEPS)
        case.poll()  # 5 and the first of another boot: in hand
        assert case.intake.settled_sequence_numbers().to_dict() == {make_header().boot: 4, "c" * 16: 0}
        assert case.intake.last_sequence_numbers.to_dict() == {make_header().boot: 5, "c" * 16: 1}

    def test_sequence_numbers_survive_a_round_trip(self) -> None:
        last_sequence_numbers = LastSequenceNumbers()
        last_sequence_numbers.take(make_header(boot="a" * 16, seq=3))
        again = LastSequenceNumbers(last_sequence_numbers.to_dict())
        assert again.is_duplicate(make_header(boot="a" * 16, seq=3))
        assert not again.is_duplicate(make_header(boot="a" * 16, seq=4))
        assert not again.is_duplicate(make_header(boot="b" * 16, seq=1))

    def test_the_memory_of_boots_is_bounded_and_forgets_the_longest_silent_one(self) -> None:
        last_sequence_numbers = LastSequenceNumbers()
        for number in range(10_000):
            last_sequence_numbers.take(make_header(boot=f"{number:016x}", seq=1))
        last_sequence_numbers.take(make_header(boot=f"{0:016x}", seq=2))
        last_sequence_numbers.take(make_header(boot="f" * 16, seq=1))
        assert len(last_sequence_numbers.to_dict()) == 10_000
        assert last_sequence_numbers.is_duplicate(make_header(boot=f"{0:016x}", seq=2))
        assert not last_sequence_numbers.is_duplicate(make_header(boot=f"{1:016x}", seq=1))


class TestAlarm:
    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("learner.intake.drops.time.monotonic", lambda: self.now)

    def drops(self, case: IntakeCase, *after_s: float) -> None:
        for seconds in after_s:
            self.now += seconds
            case.source.waiting.append(make_entry(len(case.source.asked) + 1))
            case.poll(update=9)

    def test_status_and_log_name_the_cause_if_all_rollouts_are_dropped_for_long(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        case = IntakeCase(batch_steps=STEPS)
        self.drops(case, 0, 29)
        assert case.intake.alarm == ""
        assert caplog.messages == []
        self.drops(case, 2)
        assert case.intake.alarm == "all 3 rollouts of the last 31 s were dropped: 3 stale"
        assert caplog.messages == [case.intake.alarm]

    def test_a_trained_rollout_ends_the_alarm(self) -> None:
        case = IntakeCase(batch_steps=STEPS)
        self.drops(case, 0, 31)
        case.source.waiting.append(make_entry(100))
        assert case.poll(update=0) is not None
        assert case.intake.alarm == ""

    def test_it_ends_when_nothing_comes_any_more(self) -> None:
        case = IntakeCase(batch_steps=STEPS)
        self.drops(case, 0, 31)
        self.now += 31
        assert case.intake.alarm == ""

    def test_a_drop_after_a_long_silence_is_none(self) -> None:
        case = IntakeCase(batch_steps=STEPS)
        case.poll()
        self.drops(case, 300, 1)
        assert case.intake.alarm == ""
