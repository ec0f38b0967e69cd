"""Readings of a lease or registration show whether its holder still renews it."""

from collections.abc import Iterable, Iterator

import pytest

from dppo_redis.service.renewal import HolderReading, HolderState, HolderWatch, RenewalTracker, living_holder
from dppo_redis.service.shutdown import StopRequest

TTL_S = 5.0
A, B, FREE = "host-a:17", "host-b:4", HolderReading(None, 0.0)


def judgements(watch: HolderWatch, readings: Iterable[tuple[float, HolderReading]]) -> list[HolderState]:
    return [watch.judge(look, now) for now, look in readings]


class TestHolderWatch:
    def test_more_time_left_than_before_is_a_renewal(self) -> None:
        readings = [(0.0, HolderReading(A, 4.8)), (0.2, HolderReading(A, 4.6)), (0.4, HolderReading(A, 4.7))]
        assert judgements(HolderWatch(), readings) == [
            HolderState.UNKNOWN,
            HolderState.UNKNOWN,
            HolderState.RENEWED,
        ]

    def test_less_and_less_time_left_is_none(self) -> None:
        readings = [(0.2 * i, HolderReading(A, 5.0 - 0.2 * i)) for i in range(20)]
        assert set(judgements(HolderWatch(), readings)) == {HolderState.UNKNOWN}

    def test_a_lease_without_expiry_is_not_renewed(self) -> None:
        readings = [(0.2 * i, HolderReading(A, 0.0)) for i in range(20)]
        assert set(judgements(HolderWatch(), readings)) == {HolderState.UNKNOWN}

    def test_a_new_beat_is_a_renewal(self) -> None:
        readings = [
            (0.0, HolderReading(A, beat=1)),
            (0.2, HolderReading(A, beat=1)),
            (0.4, HolderReading(A, beat=2)),
        ]
        assert judgements(HolderWatch(), readings) == [
            HolderState.UNKNOWN,
            HolderState.UNKNOWN,
            HolderState.RENEWED,
        ]

    def test_a_lease_held_a_second_longer_than_its_time_to_live_was_renewed(self) -> None:
        watch = HolderWatch(TTL_S)
        readings = [(now, HolderReading(A)) for now in (0.0, TTL_S, TTL_S + 1, TTL_S + 1.1)]
        assert judgements(watch, readings) == [
            HolderState.UNKNOWN,
            HolderState.UNKNOWN,
            HolderState.UNKNOWN,
            HolderState.RENEWED,
        ]

    def test_a_holder_whose_beat_stays_the_same_has_ended_even_if_its_lease_has_time_left(
        self,
    ) -> None:
        watch = HolderWatch(TTL_S)
        readings = [(now, HolderReading(A, 300.0, beat="7")) for now in (0.0, TTL_S, TTL_S + 1, TTL_S + 1.1)]
        assert judgements(watch, readings) == [
            HolderState.UNKNOWN,
            HolderState.UNKNOWN,
            HolderState.UNKNOWN,
            HolderState.ENDED,
        ]

    def test_a_clock_that_is_set_back_renews_nothing(self) -> None:
        readings = [(0.0, HolderReading(A, 4.8, beat="7")), (0.2, HolderReading(A, 304.6, beat="7"))]
        assert judgements(HolderWatch(), readings) == [HolderState.UNKNOWN, HolderState.UNKNOWN]

    def test_a_holder_that_renewed_and_then_stopped_has_ended(self) -> None:
        watch = HolderWatch(TTL_S)
        readings = [
            (0.0, HolderReading(A, beat="1")),
            (4.0, HolderReading(A, beat="2")),
            (10.1, HolderReading(A, beat="2")),
        ]
        assert judgements(watch, readings) == [HolderState.UNKNOWN, HolderState.RENEWED, HolderState.ENDED]

    def test_a_holder_with_an_empty_name_is_a_holder(self) -> None:
        assert (
            judgements(HolderWatch(TTL_S), [(0.0, HolderReading("")), (7.0, HolderReading(""))])[-1]
            is HolderState.RENEWED
        )

    def test_a_dead_holder_has_ended_unless_it_renewed_while_we_looked(self) -> None:
        assert HolderWatch().judge(HolderReading(A, beat=1, is_dead=True), 0.0) is HolderState.ENDED
        readings = [(0.0, HolderReading(A, beat=1)), (0.2, HolderReading(A, beat=2, is_dead=True))]
        assert judgements(HolderWatch(), readings)[-1] is HolderState.RENEWED

    def test_a_lease_that_vanishes_before_its_time_may_come_back(self) -> None:
        watch = HolderWatch(vacant_readings=3)
        gone = [(0.2 * i, FREE) for i in (1, 2)]
        assert set(judgements(watch, [(0.0, HolderReading(A, 4.0)), *gone])) == {HolderState.UNKNOWN}
        assert watch.judge(HolderReading(A, 4.9), 0.6) is HolderState.RENEWED
        again = [(0.6 + 0.2 * i, FREE) for i in (1, 2, 3)]
        assert judgements(watch, again) == [HolderState.UNKNOWN, HolderState.UNKNOWN, HolderState.ENDED]

    def test_an_expired_holder_has_ended_at_the_first_reading_without_a_holder(self) -> None:
        watch = HolderWatch(vacant_readings=15)
        watch.judge(HolderReading(A, 0.3), 0.0)
        assert watch.judge(FREE, 0.2) is HolderState.UNKNOWN
        assert watch.judge(FREE, 0.4) is HolderState.ENDED

    def test_a_lease_that_went_during_the_look_does_not_say_when_it_runs_out(self) -> None:
        watch = HolderWatch(vacant_readings=15)
        readings = [(0.0, HolderReading(A, 4.0)), (0.2, HolderReading(A, 0.0)), (0.4, FREE)]
        assert judgements(watch, readings)[-1] is HolderState.UNKNOWN


class TestRenewalTracker:
    def test_holders_that_renew_are_not_silent_and_others_are(self) -> None:
        tracker = RenewalTracker(TTL_S)
        assert tracker.silent({1: "a", 2: "a"}, 0.0) == set()
        assert tracker.silent({1: "b", 2: "a"}, TTL_S + 0.9) == set()
        assert tracker.silent({1: "b", 2: "a"}, TTL_S + 1.1) == {2}

    def test_a_holder_that_was_missing_gets_a_new_time_to_live(self) -> None:
        tracker = RenewalTracker(TTL_S)
        tracker.silent({1: "a"}, 0.0)
        tracker.silent({}, 3.0)
        assert tracker.silent({1: "a"}, TTL_S + 2) == set()


class TestLivingHolder:
    @pytest.mark.parametrize(
        ("readings", "free", "changes_hands"),
        [
            ([FREE, HolderReading(B, 5.0)], None, None),
            ([HolderReading(A, 4.0), HolderReading(A, 4.8)], A, A),
            ([HolderReading(A, 0.1), FREE, HolderReading(B, 5.0)], None, B),
        ],
        ids=["free at first", "renewed", "taken by another"],
    )
    def test_the_living_holder(
        self, stop: StopRequest, readings: list[HolderReading], free: str | None, changes_hands: str | None
    ) -> None:
        one, two = iter(readings), iter(readings)
        assert living_holder(lambda: next(one), 60, stop) == free
        assert living_holder(lambda: next(two), 60, stop, changes_hands=True) == changes_hands

    def test_reading_the_holder_ends_after_its_time(self, stop: StopRequest) -> None:
        left = decreasing()
        assert living_holder(lambda: HolderReading(A, next(left)), 0.3, stop) is None
        assert next(left) < 99, "it looked once"

    def test_reading_the_holder_ends_when_a_stop_is_requested(self, stop: StopRequest) -> None:
        left = decreasing()
        stop.request()
        assert living_holder(lambda: HolderReading(A, next(left)), 60, stop) is None
        assert next(left) == 99, "it went on looking"


def decreasing() -> Iterator[float]:
    yield from (100.0 - i for i in range(100))
