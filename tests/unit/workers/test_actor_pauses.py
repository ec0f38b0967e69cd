"""How often an actor looks while it waits for room."""

import pytest

from workers.sampling.actor_stats import ActorStats
from workers.sampling.pauses import longest_pause

_LONGEST_DRAW = 1.5  # of the random factor on a pause


@pytest.mark.parametrize("rollout_s", [0.01, 0.06, 0.2, 1.0])
@pytest.mark.parametrize("waited_in_rollouts", [1, 5, 10])
def test_the_last_reader_starts_before_the_first_actor_has_delivered(
    rollout_s: float, waited_in_rollouts: int
) -> None:
    pause_s = longest_pause(rollout_s, waited_in_rollouts * rollout_s)
    assert _LONGEST_DRAW * pause_s < 0.7 * rollout_s


@pytest.mark.parametrize(("rollout_s", "waited_s"), [(0.0, 10), (0.02, 3), (60, 0)])
def test_after_a_long_wait_an_actor_reads_redis_at_most_twenty_times_a_second(
    rollout_s: float, waited_s: float
) -> None:
    assert longest_pause(rollout_s, waited_s) == 0.05


def test_an_actor_that_never_sampled_does_not_look_without_a_pause() -> None:
    assert longest_pause(0, 0) == 0.004


def test_where_reads_queue_up_at_the_server_all_actors_read_less_often() -> None:
    assert longest_pause(2.0, 1.0, queued_s=0.001) == 0.05
    assert longest_pause(2.0, 1.0, queued_s=0.02) == pytest.approx(0.4)


def test_the_pause_stays_short_compared_with_a_rollout_also_where_reads_queue_up() -> None:
    assert longest_pause(0.4, 1.0, queued_s=1.0) == pytest.approx(0.1)
    assert longest_pause(3600.0, 100.0, queued_s=1.0) == 1.0


def test_a_read_queued_for_as_long_as_it_took_longer_than_the_fastest_one() -> None:
    stats = ActorStats(slot=0, boot=1)
    assert [stats.add_read(seconds) for seconds in (0.3, 0.1, 0.4)] == pytest.approx([0.0, 0.0, 0.3])
