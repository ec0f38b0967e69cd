"""The warnings about rollouts that were too old."""

import pytest

from learner.intake import drops
from learner.intake.drops import Drops, RecentStaleness


class Time:
    def __init__(self) -> None:
        self.now = 500.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Time:
    times = Time()
    monkeypatch.setattr(drops, "time", times)
    return times


def judge_rollouts(times: Time, seconds: int, by_actor: dict[str, list[int | None]]) -> RecentStaleness:
    """Each second each actor delivers one rollout; its staleness goes round in its list."""
    recent = RecentStaleness()
    for second in range(seconds):
        for actor, course in by_actor.items():
            recent.add(actor, course[second % len(course)])
        times.now += 1
    return recent


def test_share_and_mean_worked_by_hand(times: Time) -> None:
    """Of ten seconds: 20 rollouts, two of them too old; the others 0 or 1 updates old."""
    recent = judge_rollouts(times, 10, {"0": [0], "1": [1, 1, 1, 1, None]})
    assert recent.share == pytest.approx(2 / 20)
    assert recent.mean == pytest.approx(8 / 18)


def test_only_the_last_minute_counts(times: Time) -> None:
    recent = judge_rollouts(times, 100, {"0": [None] * 40 + [2] * 60})
    assert (recent.share, recent.mean) == (0.0, 2.0)
    times.now += 61
    assert (recent.share, recent.mean, recent.text) == (0.0, None, "")


@pytest.mark.parametrize(
    ("course", "alarm"),
    [
        ([0] * 20, ""),
        ([0] * 19 + [None], ""),  # 5 %
        ([0] * 9 + [None], "10 % of the rollouts of the last minute were too old"),
        ([None, 1], "50 % of the rollouts of the last minute were too old"),
    ],
)
def test_more_than_five_per_cent_of_a_run_are_an_alarm(
    times: Time, course: list[int | None], alarm: str
) -> None:
    text = judge_rollouts(times, 60, {"0": course}).text
    assert text.startswith(alarm) if alarm else text == ""


def test_there_is_no_warning_in_the_first_half_minute(times: Time) -> None:
    assert judge_rollouts(times, 29, {"0": [None, 0]}).text == ""


def test_an_actor_that_loses_more_than_half_is_named(times: Time) -> None:
    """One of twenty: all of the run's drops are at most five in a hundred."""
    others: dict[str, list[int | None]] = {str(slot): [0] for slot in range(30)}
    text = judge_rollouts(times, 60, {**others, "1007": [None, None, 0]}).text
    assert text.startswith("20 of 30 rollouts of actor 1007 of the last 30 s were too old")
    assert judge_rollouts(times, 60, {**others, "1007": [None, 0, 0]}).text == ""


def test_the_alarm_that_all_rollouts_were_dropped_has_priority(times: Time) -> None:
    watched = Drops()
    for _ in range(60):
        watched.recent_staleness.add("0", None)
        times.now += 1
    assert watched.alarm.startswith("100 %")
