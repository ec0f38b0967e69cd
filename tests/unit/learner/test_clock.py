"""Waits and rates of the last minute, compared with slow sums."""

import random
from collections.abc import Callable

import pytest

from learner import clock
from learner.clock import RecentRate, TrainingClock, WaitMeter


class Time:
    """Stands in for the module: a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock to so many seconds after its begin."""
    times = Time()
    monkeypatch.setattr(clock, "time", times)

    def set_to(seconds: float) -> None:
        times.now = 1000.0 + seconds

    return set_to


def test_a_wait_counts_from_its_first_second_while_it_lasts(at: Callable[[float], None]) -> None:
    meter = WaitMeter()
    assert meter.share() == 0.0
    meter.begin()
    at(0.5)
    assert (meter.share(), meter.lasting_s) == (1.0, 0.5)
    at(31)
    meter.begin()  # goes on
    assert meter.share() == 1.0
    assert meter.end() == 31
    at(62)
    assert meter.share() == pytest.approx(29 / 60), "of the last minute, which began at 2"
    assert (meter.end(), meter.lasting_s) == (0.0, 0.0)


def test_waits_older_than_a_minute_are_forgotten(at: Callable[[float], None]) -> None:
    meter = WaitMeter()
    meter.begin()
    at(100)
    meter.end()
    at(130)
    assert meter.share() == pytest.approx(30 / 60)
    at(161)
    assert meter.share() == 0.0


def test_the_share_is_that_of_a_count_by_tenths_of_seconds(at: Callable[[float], None]) -> None:
    """Waits and updates of random length; the reference examines each instant."""
    rng, meter, waiting, now = random.Random(3), WaitMeter(), [], 0
    for turn in range(80):
        is_wait = turn % 2 == 0
        if is_wait:
            meter.begin()
        for _ in range(rng.randint(1, 40)):
            now += 1
            waiting.append(is_wait)
            at(now / 10)
            last = waiting[-600:]
            assert meter.share() == pytest.approx(sum(last) / len(last), abs=1e-6)
        if is_wait:
            meter.end()


def test_a_rate_is_that_of_the_last_minute() -> None:
    """100 steps a second for 100 s, then 10."""
    rate, steps = RecentRate(), 0
    assert rate.per_s(5.0) == 0.0
    rate.add(0.0, 0)
    for second in range(1, 201):
        steps += 100 if second <= 100 else 10
        rate.add(float(second), steps)
        began = max(0, second - 60)
        fast, slow = max(0, min(100, second) - began), second - max(100, began) if second > 100 else 0
        assert rate.per_s(float(second)) == pytest.approx((100 * fast + 10 * slow) / (second - began))


def test_a_rate_falls_while_nothing_comes() -> None:
    rate = RecentRate()
    rate.add(0.0, 5000)
    rate.add(10.0, 6000)
    assert rate.per_s(10.0) == 100.0, "of a run that goes on at step 5000"
    assert rate.per_s(40.0) == 25.0
    assert rate.per_s(100.0) == 0.0


def test_the_clock_begins_where_the_first_rollout_did(at: Callable[[float], None]) -> None:
    """A first rollout of 1024 steps that took 5 s: not some ten thousand steps a second."""
    clock = TrainingClock()
    at(31)
    clock.begin(ago_s=5.0)
    at(32)
    assert clock.read_s() == 6.0
