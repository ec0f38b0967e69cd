"""Corrections for old data: reference, weight and advantage of each row."""

import math
from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.protocol.config import Correction
from dppo_redis.spaces.observations import FloatArray
from learner.ppo.advantages import gae, successor_values
from learner.ppo.corrections import (
    LOG_RATIO_LIMIT,
    Estimates,
    Trajectories,
    estimate,
    log_ratios,
    vtrace,
)
from learner.ppo.loss import ppo_loss
from tests.factories import normal

ALL: tuple[Correction, ...] = get_args(Correction)
CORRECTING = [correction for correction in ALL if correction != "none"]
CAP = 1.5


def trajectories(
    seed: int,
    *,
    steps: int = 5,
    count: int = 3,
    end_share: float = 0.3,
    drift: float = 1.0,
) -> Trajectories:
    """Random numbers; the two policies' log-probabilities differ by about `drift`."""
    rng = np.random.default_rng(seed)
    terminated, truncated = (rng.random((steps, count)) < end_share for _ in range(2))
    ends = terminated | truncated
    values = normal(rng, steps, count)
    behaviour = -np.abs(normal(rng, steps, count))
    return Trajectories(
        rewards=normal(rng, steps, count),
        values=values,
        successors=successor_values(
            values, normal(rng, count), normal(rng, int(ends.sum())), terminated, truncated
        ),
        ends=ends.astype(np.float32),
        behaviour=behaviour,
        proximal=behaviour + np.float32(drift) * normal(rng, steps, count),
    )


def of_one_environment(
    *, rewards: list[float], values: list[float], ratios: list[float], last: float
) -> Trajectories:
    """One trajectory without an end; the behaviour policy is certain of everything it did."""
    column = {
        name: np.array(numbers, np.float32)[:, None]
        for name, numbers in {
            "rewards": rewards,
            "values": values,
            "successors": [*values[1:], last],
            "proximal": [math.log(ratio) for ratio in ratios],
        }.items()
    }
    zeros = np.zeros_like(column["rewards"])
    return Trajectories(**column, ends=zeros, behaviour=zeros)


def estimates_of(
    correction: Correction, batch: Trajectories, gamma: float = 0.9, gae_lambda: float = 0.8, cap: float = CAP
) -> Estimates:
    return estimate(correction, batch, gamma, gae_lambda, cap)


def slow_vtrace(batch: Trajectories, gamma: float, gae_lambda: float) -> tuple[FloatArray, FloatArray]:
    """Equation 1 of the paper as it stands, one sum over products for each row."""
    steps, count = batch.rewards.shape
    advantages, targets = np.zeros((steps, count)), np.zeros((steps, count))
    for s, n in np.ndindex(steps, count):
        ahead = 0.0 if batch.ends[s, n] else slow_excess(batch, s + 1, n, gamma, gae_lambda)
        advantages[s, n] = slow_error(batch, s, n, gamma) + gamma * gae_lambda * ahead
        targets[s, n] = batch.values[s, n] + slow_excess(batch, s, n, gamma, gae_lambda)
    return advantages.astype(np.float32), targets.astype(np.float32)


def slow_excess(batch: Trajectories, s: int, n: int, gamma: float, gae_lambda: float) -> float:
    """v_s - V(s): the sum over t >= s of (the product of gamma c_i over s <= i < t) rho_t d_t."""
    total, product = 0.0, 1.0
    for t in range(s, len(batch.rewards)):
        ratio = min(1.0, ratio_of(batch, t, n))
        total += product * ratio * slow_error(batch, t, n, gamma)
        product *= gamma * gae_lambda * ratio
        if batch.ends[t, n]:
            break
    return total


def slow_error(batch: Trajectories, t: int, n: int, gamma: float) -> float:
    return float(batch.rewards[t, n]) + gamma * float(batch.successors[t, n]) - float(batch.values[t, n])


def ratio_of(batch: Trajectories, t: int, n: int) -> float:
    return math.exp(float(batch.proximal[t, n]) - float(batch.behaviour[t, n]))


SEEDS = st.integers(0, 2**32 - 1)


@given(
    steps=st.integers(1, 6),
    count=st.integers(1, 3),
    end_share=st.sampled_from([0.0, 0.3, 1.0]),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    seed=SEEDS,
)
def test_vtrace_agrees_with_the_sums_and_products_of_the_paper(
    steps: int, count: int, end_share: float, gamma: float, gae_lambda: float, seed: int
) -> None:
    batch = trajectories(seed, steps=steps, count=count, end_share=end_share)
    fast = vtrace(batch, np.exp(batch.proximal - batch.behaviour), gamma, gae_lambda)
    for name, ours, slow in zip(
        ("advantages", "targets"), fast, slow_vtrace(batch, gamma, gae_lambda), strict=True
    ):
        np.testing.assert_allclose(ours, slow, rtol=1e-4, atol=1e-4, err_msg=name)


def test_vtrace_worked_by_hand() -> None:
    """gamma 0.5, lambda 1, ratios 0.5 and 4: rho and c are 0.5 and 1.

    d_1 = 2 + 0.5 x 6 - 4 = 1 and v_1 = 4 + 1 x 1 = 5; d_0 = 1 + 0.5 x 4 - 2 = 1 and
    v_0 = 2 + 0.5 x 1 + 0.5 x 0.5 x (5 - 4) = 2.75. As in the paper A_0 = r_0 + 0.5 v_1 - V_0 = 1.5.
    """
    batch = of_one_environment(rewards=[1, 2], values=[2, 4], last=6, ratios=[0.5, 4])
    result = estimates_of("vtrace", batch, gamma=0.5, gae_lambda=1.0)
    assert result.returns[:, 0].tolist() == pytest.approx([2.75, 5])
    assert result.advantages[:, 0].tolist() == pytest.approx([1.5, 1])
    assert result.weights[:, 0].tolist() == pytest.approx([0.5, 1])


@pytest.mark.parametrize("correction", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_without_drift_every_correction_is_plain_ppo_bit_for_bit(correction: Correction, seed: int) -> None:
    batch = trajectories(seed, drift=0)
    advantages = gae(batch.rewards, batch.values, batch.successors, batch.ends, 0.9, 0.8)
    result = estimates_of(correction, batch)
    np.testing.assert_array_equal(result.advantages, advantages)
    np.testing.assert_array_equal(result.returns, advantages + batch.values)
    np.testing.assert_array_equal(result.old_log_probs, batch.behaviour)
    np.testing.assert_array_equal(result.weights, np.ones_like(advantages))


@pytest.mark.parametrize("correction", ALL)
def test_the_ratio_is_taken_against_the_behaviour_policy_by_plain_ppo_alone(correction: Correction) -> None:
    batch = trajectories(0)
    reference = batch.behaviour if correction == "none" else batch.proximal
    np.testing.assert_array_equal(estimates_of(correction, batch).old_log_probs, reference)


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ("none", [1, 1, 1, 1]),
        ("decoupled", [0.25, 1, 1.4, 8]),
        ("tis", [0.25, 1, 1.4, 1.5]),
        ("vtrace", [0.25, 1, 1, 1]),
    ],
)
def test_rows_count_by_how_likely_the_learner_finds_them(
    correction: Correction, weights: list[float]
) -> None:
    """The cap of truncated importance weights is 1.5 here."""
    batch = of_one_environment(rewards=[0] * 4, values=[0] * 4, last=0, ratios=[0.25, 1, 1.4, 8])
    assert estimates_of(correction, batch).weights[:, 0].tolist() == pytest.approx(weights)


@pytest.mark.parametrize("correction", ["none", "decoupled", "tis"])
def test_the_other_corrections_leave_advantages_and_targets_as_they_are(correction: Correction) -> None:
    batch = trajectories(1)
    plain = estimates_of(correction, replace(batch, proximal=batch.behaviour))
    np.testing.assert_array_equal(estimates_of(correction, batch).advantages, plain.advantages)
    np.testing.assert_array_equal(estimates_of(correction, batch).returns, plain.returns)


@given(seed=SEEDS)
def test_decoupled_and_truncated_weights_are_one_thing_below_the_cap(seed: int) -> None:
    batch = trajectories(seed, drift=0.2)
    highest = float(np.exp(batch.proximal - batch.behaviour).max())
    capped = estimates_of("tis", batch, cap=max(1.0, highest * 1.001))
    free = estimates_of("decoupled", batch)
    np.testing.assert_array_equal(capped.weights, free.weights)


@pytest.mark.parametrize("correction", ["decoupled", "tis"])
@given(seed=SEEDS, moved=st.floats(0, 1))
def test_the_surrogate_agrees_with_one_row_after_another(
    correction: Correction, seed: int, moved: float
) -> None:
    """mean(w min(pi / pi_prox A, clip(pi / pi_prox) A)) with w = pi_prox / mu, or at most the cap."""
    batch = trajectories(seed)
    rng = np.random.default_rng(seed)
    current = batch.proximal + np.float32(moved) * normal(rng, *batch.proximal.shape)
    advantages = gae(batch.rewards, batch.values, batch.successors, batch.ends, 0.9, 0.8).flatten()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    total = 0.0
    for advantage, pi, proximal, behaviour in zip(
        advantages, current.flatten(), batch.proximal.flatten(), batch.behaviour.flatten(), strict=True
    ):
        ratio, weight = math.exp(pi - proximal), math.exp(proximal - behaviour)
        if correction == "tis":
            weight = min(CAP, weight)
        total += weight * min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    expected = -total / len(advantages)
    found = policy_loss(estimates_of(correction, batch), torch.from_numpy(current.flatten()))
    assert float(found) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def policy_loss(estimates: Estimates, log_probs: torch.Tensor) -> torch.Tensor:
    """PPO's surrogate alone, of log-probabilities [B] under the current policy."""
    rows = {name: torch.from_numpy(array.flatten()) for name, array in vars(estimates).items()}
    zeros = torch.zeros_like(log_probs)
    return ppo_loss(
        log_probs=log_probs,
        old_log_probs=rows["old_log_probs"],
        weights=rows["weights"],
        advantages=rows["advantages"],
        returns=rows["returns"],
        values=zeros,
        old_values=zeros,
        entropy=zeros,
        clip_epsilon=0.2,
        value_coef=0.0,
        entropy_coef=0.0,
    ).total


def test_the_first_gradient_of_vtrace_is_that_of_impala() -> None:
    """rho A grad log pi, up to the normalisation of A; against mu the ratio would count twice."""
    batch = of_one_environment(rewards=[1, 0, 3], values=[0, 0, 0], last=0, ratios=[0.5, 0.25, 2])
    estimates = estimates_of("vtrace", batch)
    current = torch.from_numpy(batch.proximal.flatten()).requires_grad_()
    policy_loss(estimates, current).backward()  # type: ignore[no-untyped-call]
    a = estimates.advantages.flatten()
    expected = -np.array([0.5, 0.25, 1]) * (a - a.mean()) / a.std() / 3
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize("correction", ALL)
def test_nothing_crosses_the_end_of_an_episode(correction: Correction) -> None:
    """The second row ends the episode; the third may be the dummy of a reset, or the next one."""
    batch = replace(trajectories(2, count=1, end_share=0), ends=np.array([[0, 1, 0, 0, 0]], np.float32).T)
    spoiled = {name: getattr(batch, name).copy() for name in ("rewards", "values", "successors", "proximal")}
    for array in spoiled.values():
        array[2:] = 9
    before, after = (estimates_of(correction, each) for each in (batch, replace(batch, **spoiled)))
    for field in fields(before):
        np.testing.assert_array_equal(getattr(before, field.name)[:2], getattr(after, field.name)[:2])


HUGE = [-np.inf, -3e38, -1000.0, -50.0, 50.0, 1000.0, 3e38]


@pytest.mark.parametrize("correction", ALL)
@pytest.mark.parametrize("proximal", [*HUGE, np.nan])
@pytest.mark.parametrize("behaviour", [-3e38, -1000.0, 0.0, 1000.0, 3e38])
def test_weights_advantages_and_targets_are_finite_for_all_probabilities(
    correction: Correction, proximal: float, behaviour: float
) -> None:
    batch = trajectories(3)
    for array, number in ((batch.proximal, proximal), (batch.behaviour, behaviour)):
        array[2, 1] = number
    result = estimates_of(correction, batch)
    for name in ("weights", "advantages", "returns"):
        assert np.isfinite(getattr(result, name)).all()
        assert getattr(result, name).dtype == np.float32


@pytest.mark.parametrize(
    ("proximal", "behaviour", "held"),
    [
        (-1.0, -3.0, 2.0),
        (0.0, -1000.0, LOG_RATIO_LIMIT),
        (-1000.0, 0.0, -LOG_RATIO_LIMIT),
        (3e38, -3e38, LOG_RATIO_LIMIT),
        (-np.inf, 0.0, -LOG_RATIO_LIMIT),
        (np.nan, 0.0, -LOG_RATIO_LIMIT),
    ],
)
def test_log_ratios_are_held_within_their_limit(proximal: float, behaviour: float, held: float) -> None:
    ratios = log_ratios(np.array([proximal], np.float32), np.array([behaviour], np.float32))
    assert ratios.tolist() == [held]
    assert ratios.dtype == np.float32
