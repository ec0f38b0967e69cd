"""The counters of a run."""

import pytest

from learner.progress import EPISODES_AVERAGED, Progress


def make_progress() -> Progress:
    progress = Progress()
    progress.add_update(steps=64, staleness=[0, 1], returns=[10.0, 20.0])
    progress.add_update(steps=60, staleness=[3], returns=[])
    return progress


def test_an_update_adds_to_every_counter() -> None:
    progress = make_progress()
    assert (progress.update, progress.trained_steps, progress.rollouts, progress.episodes) == (2, 124, 3, 2)


def test_staleness_is_averaged_over_rollouts_not_over_updates() -> None:
    progress = make_progress()
    assert progress.staleness_mean == pytest.approx(4 / 3)
    assert progress.staleness_max == 3


def test_a_run_without_rollouts_has_staleness_and_speed_0_and_no_return() -> None:
    progress = Progress()
    assert (progress.staleness_mean, progress.staleness_max, progress.steps_per_s()) == (0.0, 0, 0.0)
    assert progress.return_mean is None
    assert progress.full_return_mean is None


def test_the_return_is_that_of_the_last_hundred_episodes() -> None:
    progress = Progress()
    progress.add_update(1, [0], [0.0] * 50)
    progress.add_update(1, [0], [1.0] * EPISODES_AVERAGED)
    assert progress.return_mean == 1.0
    assert progress.episodes == 150


def test_the_full_return_is_there_once_a_hundred_episodes_are() -> None:
    progress = Progress()
    progress.add_update(1, [0], [2.0] * (EPISODES_AVERAGED - 1))
    assert (progress.return_mean, progress.full_return_mean) == (2.0, None)
    progress.add_update(1, [0], [2.0])
    assert progress.full_return_mean == 2.0


def test_speed_is_trained_steps_per_second_of_training() -> None:
    progress = make_progress()
    progress.train_s = 4.0
    assert progress.steps_per_s() == 31.0


def test_a_round_trip_through_plain_values_changes_nothing() -> None:
    progress = make_progress()
    progress.train_s, progress.target_step = 1.5, 99
    values = progress.to_dict()
    assert all(isinstance(x, int | float | list | None) for x in values.values())
    assert Progress.from_dict(values) == progress


def test_after_a_round_trip_still_only_a_hundred_episodes_are_kept() -> None:
    progress = Progress.from_dict(make_progress().to_dict())
    progress.add_update(1, [0], [1.0] * 300)
    assert len(progress.returns) == EPISODES_AVERAGED


def test_plain_values_are_a_copy() -> None:
    progress = make_progress()
    values = progress.to_dict()
    progress.add_update(1, [0], [5.0])
    assert values["returns"] == [10.0, 20.0]


@pytest.mark.parametrize("name", list(Progress().to_dict()))
def test_values_that_lack_a_counter_are_refused_not_filled_with_a_default(name: str) -> None:
    values = make_progress().to_dict()
    del values[name]
    with pytest.raises((KeyError, TypeError)):
        Progress.from_dict(values)
