"""The effect of episode ends on a return."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.spaces.observations import BoolArray, FloatArray
from learner.ppo.advantages import gae, successor_values
from tests.factories import normal


def advantages_of_one(
    *,
    rewards: Sequence[float],
    values: Sequence[float],
    last: float,
    final: Sequence[float] = (),
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    gamma: float,
    gae_lambda: float = 1.0,
) -> FloatArray:
    """Advantages of a single environment; ends are given as step numbers."""
    steps = np.arange(len(rewards))
    return advantages(
        column(rewards),
        column(values),
        np.array([last], np.float32),
        np.array(final, np.float32),
        np.isin(steps, terminated)[:, None],
        np.isin(steps, truncated)[:, None],
        gamma,
        gae_lambda,
    )[:, 0]


def column(numbers: Sequence[float]) -> FloatArray:
    return np.array(numbers, np.float32)[:, None]


def advantages(
    rewards: FloatArray,
    values: FloatArray,
    last: FloatArray,
    final: FloatArray,
    terminated: BoolArray,
    truncated: BoolArray,
    gamma: float,
    gae_lambda: float,
) -> FloatArray:
    successors = successor_values(values, last, final, terminated, truncated)
    ends = (terminated | truncated).astype(np.float32)
    return gae(rewards, values, successors, ends, gamma, gae_lambda)


def slow_advantages(
    rewards: FloatArray,
    values: FloatArray,
    last: FloatArray,
    final: FloatArray,
    terminated: BoolArray,
    truncated: BoolArray,
    gamma: float,
    gae_lambda: float,
) -> FloatArray:
    """One environment after the other, one episode after the other, each sum written out."""
    steps, count = rewards.shape
    ended = [(t, n) for t, n in np.ndindex(steps, count) if terminated[t, n] or truncated[t, n]]
    result = np.zeros((steps, count))
    for n in range(count):
        for t in range(steps):
            total, discount = 0.0, 1.0
            for k in range(t, steps):
                if terminated[k, n]:
                    after = 0.0
                elif truncated[k, n]:
                    after = float(final[ended.index((k, n))])
                else:
                    after = float(values[k + 1, n] if k + 1 < steps else last[n])
                total += discount * (float(rewards[k, n]) + gamma * after - float(values[k, n]))
                discount *= gamma * gae_lambda
                if (k, n) in ended:
                    break
            result[t, n] = total
    return result.astype(np.float32)


def middle_step_ends(
    *, terminated: Sequence[int] = (), truncated: Sequence[int] = (), final: float = 7.0
) -> FloatArray:
    """Known failure KF-PPO-01: three steps, an episode ends in the one in the middle."""
    return advantages_of_one(
        rewards=[1, 1, 1],
        values=[5, 5, 5],
        last=5,
        final=[final],
        terminated=terminated,
        truncated=truncated,
        gamma=0.9,
        gae_lambda=0.95,
    )


def test_a_truncated_episode_bootstraps_from_its_true_final_observation() -> None:
    result = middle_step_ends(truncated=[1])
    assert result == pytest.approx([2.4665, 2.3, 0.5], abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([-2.92, -4, 0.5], id="time limit taken for a real end"),
        pytest.param([0.9275, 0.5, 0.5], id="reset observation taken for the final one"),
        pytest.param([2.832, 2.7275, 0.5], id="next episode leaks into this one"),
    ],
)
def test_a_truncated_episode_gives_none_of_the_known_wrong_numbers(wrong: list[float]) -> None:
    result = middle_step_ends(truncated=[1])
    assert result != pytest.approx(wrong, abs=1e-2)


def test_a_terminated_episode_is_worth_nothing_after_its_end() -> None:
    result = middle_step_ends(terminated=[1])
    assert result == pytest.approx([0.5 + 0.9 * 0.95 * -4, -4, 0.5], abs=1e-6)


def test_termination_wins_when_both_flags_are_set() -> None:
    both = middle_step_ends(terminated=[1], truncated=[1])
    terminated = middle_step_ends(terminated=[1])
    np.testing.assert_array_equal(both, terminated)


# Known failure KF-PPO-02.
def test_a_rollout_of_one_step_bootstraps_from_the_observation_after_it() -> None:
    assert advantages_of_one(rewards=[2], values=[1], last=4, gamma=0.5) == pytest.approx([3.0])


def test_the_last_step_of_a_rollout_bootstraps_from_the_observation_after_it() -> None:
    result = advantages_of_one(rewards=[0, 2], values=[1, 1], last=4, gamma=0.5, gae_lambda=0.8)
    assert result == pytest.approx([0.7, 3.0])
    assert result != pytest.approx([0.1, 1.5], abs=1e-3), "the last stored value was used twice"
    assert result != pytest.approx([-0.1, 1.0], abs=1e-3), "zero was used"


def test_an_end_in_the_last_step_does_not_look_at_the_observation_after_it() -> None:
    ended = advantages_of_one(rewards=[2], values=[1], last=99, truncated=[0], final=[4], gamma=0.5)
    assert ended == pytest.approx([3.0])


def test_the_value_of_the_state_after_a_termination_may_be_anything() -> None:
    result = advantages_of_one(rewards=[2], values=[1], last=4, terminated=[0], final=[np.nan], gamma=0.5)
    assert result == pytest.approx([1.0])


def test_final_values_reach_their_rows_in_row_order() -> None:
    truncated = np.array([[False, True], [True, True]])
    successors = successor_values(
        values=np.zeros((2, 2), np.float32),
        last_values=np.zeros(2, np.float32),
        final_values=np.array([10, 20, 30], np.float32),
        terminated=np.zeros((2, 2), np.bool_),
        truncated=truncated,
    )
    np.testing.assert_array_equal(successors, [[0, 10], [20, 30]])


def test_the_end_mask_is_a_float_that_switches_the_trace_off() -> None:
    ones = np.ones((2, 1), np.float32)
    traced = gae(ones, 0 * ones, 0 * ones, 0 * ones, gamma=0.5, gae_lambda=0.5)
    cut = gae(ones, 0 * ones, 0 * ones, np.array([[1], [0]], np.float32), gamma=0.5, gae_lambda=0.5)
    assert traced[:, 0] == pytest.approx([1.25, 1])
    assert cut[:, 0] == pytest.approx([1, 1])
    assert cut.dtype == np.float32


def test_lambda_one_gives_the_return_less_the_value_and_lambda_zero_one_step_errors() -> None:
    whole, one_step = (
        advantages_of_one(rewards=[1, 2, 3], values=[10, 20, 30], last=40, gamma=0.5, gae_lambda=gae_lambda)
        for gae_lambda in (1.0, 0.0)
    )
    assert whole == pytest.approx([1 + 1 + 0.75 + 5 - 10, 2 + 1.5 + 10 - 20, 3 + 20 - 30])
    assert one_step == pytest.approx([1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30])


@given(
    steps=st.integers(1, 7),
    count=st.integers(1, 3),
    end_share=st.sampled_from([0.0, 0.3, 1.0]),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_advantages_agree_with_sums_over_each_trajectory(
    steps: int, count: int, end_share: float, gamma: float, gae_lambda: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    terminated, truncated = (rng.random((steps, count)) < end_share for _ in range(2))
    final = normal(rng, int((terminated | truncated).sum()))
    rewards, values = normal(rng, steps, count), normal(rng, steps, count)
    numbers = (rewards, values, normal(rng, count), final, terminated, truncated, gamma, gae_lambda)
    np.testing.assert_allclose(advantages(*numbers), slow_advantages(*numbers), rtol=1e-4, atol=1e-4)
