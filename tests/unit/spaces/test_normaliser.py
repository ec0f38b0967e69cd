"""The normaliser: merged in parts it equals one pass, and actor and learner apply it alike."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.errors import WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.normaliser import CLIP, RunningMoments, discounted_returns, normalise
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate
from ops.screens.curve import read_metrics
from ops.screens.tables import make_console
from ops.serial import make_serial
from tests.factories import (
    CPU,
    TERMINATING,
    make_config,
    make_model,
    make_ppo,
    make_rollout,
    make_spec,
    make_weights,
    spaces_of,
)

NORMALISED = make_spec(normalise_observations=True)


def updater(**knobs: object) -> PpoUpdate:
    ppo = make_ppo(minibatch_size=8, **knobs)
    return PpoUpdate(make_model(NORMALISED), NORMALISED, ppo, update_epochs=2, seed=0, device=CPU)


def acting(learner: PpoUpdate) -> ActingPolicy:
    return ActingPolicy(replace(make_weights(NORMALISED), arrays=learner.acting_arrays()), NORMALISED)


def test_mean_and_variance_worked_by_hand() -> None:
    moments = RunningMoments.empty(1).merge(np.array([[1.0], [3.0]])).merge(np.array([[5.0]]))
    assert (moments.count, moments.mean[0]) == (3, 3)
    assert moments.squares[0] == pytest.approx(8)  # 4 + 0 + 4
    assert moments.inverse_std[0] == pytest.approx((8 / 3) ** -0.5)


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), offset=st.floats(-1e6, 1e6))
def test_the_merge_of_many_parts_equals_one_pass_over_all_rows(sizes: list[int], offset: float) -> None:
    rng = np.random.default_rng(sum(sizes))
    parts = [offset + rng.standard_normal((size, 3)) for size in sizes]
    merged = RunningMoments.empty(3)
    for part in parts:
        merged = merged.merge(part)
    rows = np.concatenate(parts)
    assert merged.count == len(rows)
    if len(rows):
        assert merged.mean == pytest.approx(rows.mean(axis=0))
        assert merged.squares / len(rows) == pytest.approx(rows.var(axis=0), rel=1e-6, abs=1e-6)


def test_nothing_changes_before_the_first_row() -> None:
    empty = RunningMoments.empty(2)
    observations = np.array([[3, -4]], np.float32)
    mean, inverse_std = empty.mean.astype(np.float32), empty.inverse_std.astype(np.float32)
    assert normalise(observations, mean, inverse_std).tolist() == [[3, -4]]


def test_a_value_that_never_varies_stays_finite_and_outliers_are_clipped() -> None:
    moments = RunningMoments.empty(1).merge(np.full((5, 1), 7.0))
    mean, inverse_std = moments.mean.astype(np.float32), moments.inverse_std.astype(np.float32)
    assert normalise(np.array([[7], [8]], np.float32), mean, inverse_std).tolist() == [[0], [CLIP]]


def test_running_discounted_returns_worked_by_hand() -> None:
    """The first environment ends after its second step, the second has a dummy step in the middle."""
    returns, after = discounted_returns(
        start=np.array([4.0, 2.0]),
        rewards=np.array([[1, 1], [1, 0], [1, 1]], np.float32),
        ends=np.array([[False, True], [True, False], [False, False]]),
        valid=np.array([[True, True], [True, False], [True, True]]),
        gamma=0.5,
    )
    assert returns.tolist() == [[3, 2], [2.5, 0], [1, 1]]
    assert after.tolist() == [1, 1]


def test_the_running_return_continues_from_one_rollout_to_the_next() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.standard_normal((6, 2)).astype(np.float32)
    ends = rng.random((6, 2)) < 0.3
    valid = np.ones((6, 2), np.bool_)
    whole, last = discounted_returns(np.zeros(2), rewards, ends, valid, 0.9)
    first, middle = discounted_returns(np.zeros(2), rewards[:3], ends[:3], valid[:3], 0.9)
    second, end = discounted_returns(middle, rewards[3:], ends[3:], valid[3:], 0.9)
    assert np.concatenate([first, second]) == pytest.approx(whole)
    assert end == pytest.approx(last)


def test_actor_and_learner_agree_after_the_normaliser_has_moved() -> None:
    learner = updater(normalise_observations=True)
    for seed in range(3):
        policy = acting(learner)
        rollout = make_rollout(NORMALISED, count=4, seed=seed, policy=policy)
        shifted = rollout.observations * 50 + 30
        log_probs = policy.log_probs(policy.outputs(shifted), rollout.actions)
        rollout = replace(rollout, observations=shifted, log_probs=log_probs)
        report = learner.update(stack([rollout]), 0.0)
        assert report.ratio_error is not None
        assert report.ratio_error < 1e-4
    assert learner.observation_moments.count == 3 * rollout.steps
    assert learner.observation_moments.mean == pytest.approx([30, 30], abs=30)


def test_only_valid_rows_reach_the_statistics() -> None:
    learner = updater(normalise_observations=True, normalise_returns=True)
    rollout = make_rollout(NORMALISED, count=2, terminated=[(0, 1)], invalid=[(1, 1)])
    rollout.observations[1, 1] = 1e9
    learner.update(stack([rollout]), 0.0)
    assert learner.observation_moments.count == learner.return_moments.count == rollout.steps == 7
    assert (np.abs(learner.observation_moments.mean) < 10).all()


def test_rewards_of_any_unit_train_alike_when_returns_are_normalised() -> None:
    def weights_after(unit: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        learner = updater(normalise_returns=True)
        rollout = make_rollout(NORMALISED, count=4)
        rewards, start = rollout.rewards * np.float32(unit), rollout.discounted_returns * unit
        learner.update(stack([replace(rollout, rewards=rewards, discounted_returns=start)]), 0.0)
        return learner.model.acting_arrays()["policy.0.weight"]

    assert weights_after(1000.0) == pytest.approx(weights_after(1.0), abs=1e-4)


def test_weights_without_the_normaliser_that_the_spec_asks_for_are_refused() -> None:
    with pytest.raises(WireError, match="normaliser"):
        ActingPolicy(make_weights(NORMALISED), NORMALISED)


def test_returns_are_reported_raw_whatever_is_normalised(tmp_path: Path) -> None:
    """Episodes of three steps, rewarded with 1, 2 and 3: in training, evaluation and metrics.csv."""
    config = make_config(
        env_id=TERMINATING,
        total_steps=200,
        envs_per_actor=2,
        ppo={"batch_steps": 64, "normalise_observations": True, "normalise_returns": True},
        evaluation={"episodes": 2},
    )
    serial = make_serial(
        plan(config, spaces_of(config), serial=True), tmp_path, make_console(io.StringIO()), StopRequest()
    )
    serial.run()
    serial.close()
    assert serial.training.ppo.return_moments.inverse_std != 1
    assert serial.training.progress.return_mean == 6
    assert serial.training.evaluation is not None
    assert serial.training.evaluation.return_mean == 6
    assert {record.return_mean for record in read_metrics(tmp_path)} == {6.0}
