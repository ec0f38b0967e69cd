"""How long an environment that cannot be built is tried again."""

import pytest

from dppo_redis.errors import EnvironmentBrokenError, EnvironmentNotBuiltError
from workers import failures
from workers.failures import MOST_FAILURES, FailureCount


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(failures, "time", clock)
    return clock


def tries(failure_count: FailureCount, clock: Clock, error: EnvironmentBrokenError) -> int:
    """How often building fails until the process gives up; the clock goes on with its pauses."""
    for count in range(1, 1000):
        failure_count.count_failure(error)
        try:
            clock.now += failure_count.pause_s(error)
        except EnvironmentBrokenError:
            return count
    raise AssertionError("it never gives up")


@pytest.mark.parametrize("retry_s", [0.0, 1.0, 30.0, 300.0])
def test_building_is_retried_for_a_limited_time(clock: Clock, retry_s: float) -> None:
    began, error = clock.now, EnvironmentNotBuiltError("no licence")
    count = tries(FailureCount(retry_s), clock, error)
    assert clock.now - began == pytest.approx(retry_s, abs=0.02)
    assert (count == 1) == (retry_s == 0)


def test_failing_steps_are_retried_a_limited_number_of_times(clock: Clock) -> None:
    assert tries(FailureCount(300.0), clock, EnvironmentBrokenError("no licence")) == MOST_FAILURES


def test_a_success_restarts_the_retry_time(clock: Clock) -> None:
    failure_count, error = FailureCount(30.0), EnvironmentNotBuiltError("no licence")
    failure_count.count_failure(error)
    clock.now += 29.0
    failure_count.sampled()
    clock.now += 29.0
    failure_count.count_failure(error)
    assert failure_count.pause_s(error) > 0
