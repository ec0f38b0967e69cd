"""One wrong number cannot spoil the statistics; without outliers they are the plain ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.spaces.normaliser import (
    CLIP,
    OUTLIER,
    RunningMoments,
    discounted_returns,
    hold_rewards,
    normalise,
    spread_of,
)
from dppo_redis.spaces.observations import Array
from learner.ppo.update import PpoUpdate
from tests.factories import CPU, make_batch, make_model, make_ppo, make_spec

ROWS = 2048
NORMALISED = make_spec(normalise_observations=True, rollout_steps=64)


def usual(seed: int = 0, rows: int = ROWS) -> Array:
    """Three numbers of very different size."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, 3)) * [1e-3, 1.0, 1e4] + [0.0, 5.0, 1e4]).astype(np.float32)


def merged(batches: list[Array]) -> tuple[RunningMoments, int]:
    """The statistics of batches, one after another, and how many rows held an outlier."""
    moments, outliers = RunningMoments.empty(batches[0].shape[1]), 0
    for rows in batches:
        held, outside = spread_of(moments, rows).hold(rows)
        moments, outliers = moments.merge(held), outliers + int(outside.sum())
    return moments, outliers


def with_number(rows: Array, value: float, row: int = 7) -> Array:
    changed = rows.copy()
    changed[row, 1] = value
    return changed


@pytest.mark.parametrize("value", [1e4, -1e6, 1e10, 3e38])
@pytest.mark.parametrize("batch", [0, 1, 30], ids=["first", "second", "late"])
def test_one_wrong_number_is_counted_and_leaves_the_statistics_as_they_were(value: float, batch: int) -> None:
    batches = [usual(seed) for seed in range(40)]
    plain, none = merged(batches)
    batches[batch] = with_number(batches[batch], value)
    moments, outliers = merged(batches)
    assert (none, outliers) == (0, 1)
    assert moments.inverse_std == pytest.approx(plain.inverse_std, rel=0.01)
    assert moments.mean == pytest.approx(plain.mean, abs=0.01)


def test_a_number_just_within_the_limit_counts_in_full() -> None:
    first = RunningMoments.empty(3).merge(usual())
    edge = first.mean[1] + OUTLIER * np.sqrt(first.squares[1] / first.count)
    for value, expected in ((0.999 * edge, 0), (1.001 * edge, 1)):
        rows = with_number(usual(1), value)
        held, outside = spread_of(first, rows).hold(rows)
        assert outside.sum() == expected
        assert (held[7, 1] == rows[7, 1]) == (expected == 0)
    assert held[7, 1] == pytest.approx(first.mean[1] + CLIP * np.sqrt(first.squares[1] / first.count))


@given(st.integers(1, 5), st.integers(1, 300), st.floats(-1e3, 1e3), st.floats(1e-6, 1e6))
def test_rows_without_an_outlier_are_merged_bit_for_bit_as_they_are(
    batches: int, rows: int, centre: float, scale: float
) -> None:
    rng = np.random.default_rng(rows)
    parts = [(centre + scale * rng.standard_normal((rows, 2))).astype(np.float32) for _ in range(batches)]
    plain = RunningMoments.empty(2)
    for part in parts:
        held, _ = spread_of(plain, part).hold(part)
        assert held is part
        plain = plain.merge(part)


def test_an_outlier_again_and_again_moves_the_statistics_within_bounds() -> None:
    """One row of 500 at 1e10: what is left of the ordinary rows' spread is more than half."""
    batches = [usual(seed) for seed in range(100)]
    for rows in batches:
        rows[::500, 1] = 1e10
    moments, outliers = merged(batches)
    assert outliers == 100 * len(range(0, ROWS, 500))
    assert 0.5 < moments.inverse_std[1] < 1.0


def test_the_statistics_follow_a_lasting_change() -> None:
    """Ten times the farthest that is no outlier, after 50 batches; a fifth as many later it is seen whole."""
    batches = [usual(seed) for seed in range(50)]
    late = [usual(seed) + np.array([0, 10 * OUTLIER, 0], np.float32) for seed in range(10)]
    moments, _ = merged(batches + late)
    seen = normalise(late[0].copy(), moments.mean.astype(np.float32), moments.inverse_std.astype(np.float32))
    assert np.abs(seen[:, 1]).max() < CLIP
    _, outliers = merged([*batches, *late, usual() + np.array([0, 10 * OUTLIER, 0], np.float32)])
    assert outliers < 10 * ROWS


def test_a_value_that_has_not_varied_may_begin_to_vary() -> None:
    still = np.full((ROWS, 1), 0.1, np.float32)
    moving = np.where(np.arange(ROWS)[:, None] % 100, still, np.float32(500))
    for batches in ([still, moving], [moving, still], [moving]):
        assert merged(batches)[1] == 0
    assert merged([still, with_number(np.tile(still, 2), 1e10)[:, 1:]])[1] == 1


def test_a_few_rows_of_the_first_seconds_say_little_of_the_spread_to_come() -> None:
    """A cart is pushed from rest: batches of 32 rows that are neighbours in time."""
    position = np.square(np.linspace(0, 1, 640, dtype=np.float32))[:, None]
    assert merged(np.split(position, 20))[1] == 0


def test_nothing_to_keep_statistics_of_has_no_outliers() -> None:
    empty = np.zeros((5, 0), np.float32)
    assert merged([empty, empty])[1] == 0


class TestReturns:
    """The same for rewards, whose running discounted return is kept statistics of."""

    GAMMA = 0.99

    def spread(self, batches: list[Array], starts: list[Array] | None = None) -> tuple[float, int]:
        """1 / standard deviation of the discounted returns, and the outliers; rewards are [T, N]."""
        moments, outliers = RunningMoments.empty(1), 0
        start = np.zeros(batches[0].shape[1])
        for number, rewards in enumerate(batches):
            begin = start if starts is None else starts[number]
            valid, ends = np.ones(rewards.shape, np.bool_), np.zeros(rewards.shape, np.bool_)
            begin, held, outside = hold_rewards(moments, begin, rewards, valid, self.GAMMA)
            returns, start = discounted_returns(begin, held, ends, valid, self.GAMMA)
            moments, outliers = moments.merge(returns[valid][:, None]), outliers + int(outside.sum())
        return float(moments.inverse_std[0]), outliers

    def rewards(self, seed: int) -> Array:
        return np.random.default_rng(seed).standard_normal((256, 8)).astype(np.float32)

    @pytest.mark.parametrize("value", [1e6, -1e10, 1e25])
    @pytest.mark.parametrize("batch", [0, 1, 15], ids=["first", "second", "late"])
    def test_one_wrong_reward_is_counted_and_leaves_the_scale_as_it_was(
        self, value: float, batch: int
    ) -> None:
        batches = [self.rewards(seed) for seed in range(20)]
        plain, none = self.spread(batches)
        batches[batch][100, 3] = value
        scale, outliers = self.spread(batches)
        assert (none, outliers) == (0, 1)
        assert scale == pytest.approx(plain, rel=0.05)

    def test_a_running_return_that_contains_an_outlier_counts_as_usual(self) -> None:
        batches = [self.rewards(seed) for seed in range(20)]
        starts = [np.zeros(8) for _ in batches]
        plain, _ = self.spread(batches, starts)
        for start in starts[10:]:
            start[3] = 1e10
        assert self.spread(batches, starts)[0] == pytest.approx(plain, rel=0.01)

    @pytest.mark.parametrize(
        ("each", "at_last"), [(0.0, 1000.0), (-0.1, 1000.0), (-1.0, -100.0), (1e-3, 5.0)]
    )
    def test_a_rare_large_reward_for_the_goal_is_no_outlier(self, each: float, at_last: float) -> None:
        rewards = np.full((256, 8), each, np.float32)
        rewards[200, 5] = at_last
        assert self.spread([rewards, rewards])[1] == 0


def test_an_update_reports_what_was_held_back_and_still_sees_it_clipped() -> None:
    knobs = make_ppo(minibatch_size=64, normalise_observations=True, normalise_returns=True)
    batch = make_batch(NORMALISED, count=8)
    wrong = replace(batch, observations=batch.observations.copy(), rewards=batch.rewards.copy())
    wrong.observations[5, 2, 0] = wrong.observations[6, 2, 1] = 1e10
    wrong.rewards[9, 1] = -1e20

    def trained(second: object) -> tuple[PpoUpdate, list[tuple[int, int]]]:
        learner = PpoUpdate(make_model(NORMALISED), NORMALISED, knobs, update_epochs=1, seed=0, device=CPU)
        reports = [learner.update(one, 0.0) for one in (batch, second, batch)]  # type: ignore[arg-type]
        assert all(report.skipped_steps == 0 for report in reports)
        return learner, [(report.outlier_observations, report.outlier_rewards) for report in reports]

    plain, nothing = trained(batch)
    learner, held = trained(wrong)
    assert (nothing, held) == ([(0, 0)] * 3, [(0, 0), (2, 1), (0, 0)])
    for of in ("observation_moments", "return_moments"):
        found, expected = getattr(learner, of), getattr(plain, of)
        assert found.inverse_std == pytest.approx(expected.inverse_std, rel=0.15)
