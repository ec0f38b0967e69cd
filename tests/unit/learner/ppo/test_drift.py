"""The drift of the learner's policy from those that sampled a batch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.spaces.observations import FloatArray
from learner.ppo.corrections import LOG_RATIO_LIMIT
from learner.ppo.drift import Drift, by_staleness, drift


def logs(*ratios: float) -> FloatArray:
    return np.log(np.array(ratios, np.float32))


def test_drift_worked_by_hand() -> None:
    """Ratios 0.5, 1 and 3: mean 1.5, two outside 0.8 to 1.2, ESS 4.5^2 / (0.25 + 1 + 9) of 3 rows."""
    found = drift(logs(0.5, 1, 3), clip_epsilon=0.2)
    assert found.rows == 3
    assert found.ratio == pytest.approx(1.5)
    assert found.kl == pytest.approx((0.5 - 1 + math.log(2) + 3 - 1 - math.log(3)) / 3)
    assert found.clip_fraction == pytest.approx(2 / 3)
    assert found.effective_share == pytest.approx(4.5**2 / 10.25 / 3)


def test_fresh_rows_have_not_drifted() -> None:
    assert drift(np.zeros(7, np.float32), 0.2) == Drift(7, 1.0, 0.0, 0.0, 1.0)


def test_without_rows_there_is_no_drift() -> None:
    assert drift(np.zeros(0, np.float32), 0.2) == Drift(0, 1.0, 0.0, 0.0, 1.0)


def test_each_staleness_is_judged_by_its_own_rows_freshest_first() -> None:
    found = by_staleness(logs(2, 1, 1, 4, 2), np.array([3, 0, 0, 7, 3]), 0.2)
    assert list(found) == [0, 3, 7]
    assert [of.rows for of in found.values()] == [2, 2, 1]
    assert [of.ratio for of in found.values()] == pytest.approx([1, 2, 4])
    assert [of.clip_fraction for of in found.values()] == [0, 1, 1]


@given(st.lists(st.floats(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), min_size=1, max_size=20))
def test_numbers_are_finite_and_in_their_ranges_for_all_ratios_that_are_let_through(
    exponents: list[float],
) -> None:
    found = drift(np.array(exponents, np.float32), 0.2)
    assert math.isfinite(found.ratio)
    assert found.kl >= 0
    assert 0 <= found.clip_fraction <= 1
    assert 1 / len(exponents) * 0.999 <= found.effective_share <= 1.001


def test_the_divergence_estimates_the_true_one() -> None:
    """Two normal policies one deviation apart, sampled from the older one: KL is 1/2."""
    sampled = np.random.default_rng(0).standard_normal(200_000)
    log_rho = -0.5 * np.square(sampled - 1) + 0.5 * np.square(sampled)
    found = drift(log_rho.astype(np.float32), 0.2)
    assert found.kl == pytest.approx(0.5, abs=0.02)
    assert found.ratio == pytest.approx(1.0, abs=0.02)
    assert found.effective_share == pytest.approx(math.exp(-1), abs=0.03)
