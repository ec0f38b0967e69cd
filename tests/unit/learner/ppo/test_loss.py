"""The terms of PPO's loss."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.ppo.loss import Loss, normalise, ppo_loss

ROWS = ("log_probs", "old_log_probs", "advantages", "values", "old_values", "returns", "entropy")
NAMES = (*ROWS, "weights")


def loss_of(
    *,
    clip_epsilon: float = 0.2,
    value_coef: float = 0.5,
    entropy_coef: float = 0.0,
    dual_clip: float | None = None,
    value_clip: float | None = None,
    **rows: Any,
) -> Loss:
    """The loss of rows that are all zero, of weight 1, but for what is given; numbers become tensors."""
    given_rows = {name: torch.as_tensor(row, dtype=torch.float32) for name, row in rows.items()}
    shape = next(iter(given_rows.values())).shape
    zeros: dict[str, Any] = {name: torch.zeros(shape) for name in ROWS}
    return ppo_loss(
        **{**zeros, "weights": torch.ones(shape), **given_rows},
        clip_epsilon=clip_epsilon,
        value_coef=value_coef,
        entropy_coef=entropy_coef,
        dual_clip=dual_clip,
        value_clip=value_clip,
    )


def slow_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    weights: Tensor,
    clip_epsilon: float,
    value_coef: float,
    entropy_coef: float,
    dual_clip: float | None,
    value_clip: float | None,
) -> dict[str, float]:
    """Every term for one row after another, in Python's own floats."""
    count = len(log_probs)
    a = [float(x) for x in advantages]
    mean = sum(a) / count
    std = math.sqrt(sum((x - mean) ** 2 for x in a) / count)
    policy = value = kl = clipped = 0.0
    for i in range(count):
        advantage = (a[i] - mean) / (std + 1e-8)
        ratio = math.exp(float(log_probs[i]) - float(old_log_probs[i]))
        limited = min(max(ratio, 1 - clip_epsilon), 1 + clip_epsilon)
        surrogate = min(ratio * advantage, limited * advantage)
        if dual_clip is not None and advantage < 0:
            surrogate = max(surrogate, dual_clip * advantage)
        policy -= float(weights[i]) * surrogate / count
        v, old, target = float(values[i]), float(old_values[i]), float(returns[i])
        error = (v - target) ** 2
        if value_clip is not None:
            error = max(error, (old + min(max(v - old, -value_clip), value_clip) - target) ** 2)
        value += error / 2 / count
        kl += (ratio - 1 - math.log(ratio)) / count
        clipped += (ratio != limited) / count
    mean_entropy = float(entropy.sum()) / count
    return {
        "total": policy + value_coef * value - entropy_coef * mean_entropy,
        "policy": policy,
        "value": value,
        "entropy": mean_entropy,
        "approx_kl": kl,
        "clip_fraction": clipped,
    }


def test_a_loss_worked_by_hand() -> None:
    """Advantages 1 and 3 become -1 and +1; the ratios 2 and 1.5 are both clipped to 1.2.

    The policy term is -mean(min(-2, -1.2), min(1.5, 1.2)) = -(-2 + 1.2) / 2 = 0.4, the value term
    (1 + 9) / 2 / 2 = 2.5, and the whole 0.4 + 0.5 * 2.5 - 0.1 * 0.75 = 1.575.
    """
    loss = loss_of(
        log_probs=[math.log(2), math.log(1.5)],
        advantages=[1, 3],
        values=[0, 0],
        returns=[1, -3],
        entropy=[0.5, 1.0],
        entropy_coef=0.1,
    )
    assert float(loss.policy) == pytest.approx(0.4)
    assert float(loss.value) == pytest.approx(2.5)
    assert float(loss.entropy) == pytest.approx(0.75)
    assert float(loss.total) == pytest.approx(1.575)
    assert float(loss.clip_fraction) == 1.0
    assert float(loss.approx_kl) == pytest.approx((2 - 1 - math.log(2) + 1.5 - 1 - math.log(1.5)) / 2)


@given(
    count=st.integers(1, 9),
    clip_epsilon=st.floats(0.01, 0.5),
    value_coef=st.floats(0, 2),
    entropy_coef=st.floats(0, 2),
    dual_clip=st.none() | st.floats(1.01, 5),
    value_clip=st.none() | st.floats(0.01, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_loss_agrees_with_one_row_after_another(
    count: int,
    clip_epsilon: float,
    value_coef: float,
    entropy_coef: float,
    dual_clip: float | None,
    value_clip: float | None,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    numbers: dict[str, Any] = {
        **{name: torch.from_numpy(rng.standard_normal(count, np.float32)) for name in NAMES},
        "clip_epsilon": clip_epsilon,
        "value_coef": value_coef,
        "entropy_coef": entropy_coef,
        "dual_clip": dual_clip,
        "value_clip": value_clip,
    }
    fast, slow = loss_of(**numbers), slow_loss(**numbers)
    for field in fields(fast):
        assert float(getattr(fast, field.name)) == pytest.approx(slow[field.name], rel=1e-4, abs=1e-4)


def test_the_dual_clip_bounds_a_bad_action_that_became_likely_and_nothing_else() -> None:
    """Advantages 1 and 3 become -1 and +1: the ratio 10 counts 3 for the first, 1.2 for the second."""
    rows: dict[str, Any] = {"log_probs": [math.log(10), math.log(10)], "advantages": [1, 3]}
    assert float(loss_of(**rows).policy) == pytest.approx((10 - 1.2) / 2)
    assert float(loss_of(**rows, dual_clip=3).policy) == pytest.approx((3 - 1.2) / 2)


def test_the_value_clip_counts_the_larger_error() -> None:
    """From 0 to 1 towards 5: held at 0.2 the error is 4.8. From 0 to 5, past 4: the real error is less."""
    rows: dict[str, Any] = {"values": [1, 5], "old_values": [0, 0], "returns": [5, 4]}
    assert float(loss_of(**rows).value) == pytest.approx((16 + 1) / 2 / 2)
    assert float(loss_of(**rows, value_clip=0.2).value) == pytest.approx((4.8**2 + 3.8**2) / 2 / 2)


def test_a_weight_scales_the_surrogate_of_its_row_and_nothing_else() -> None:
    """Advantages 1 and 3 become -1 and +1 whatever the weights: -(-1 x 0.5 + 1 x 2) / 2."""
    rows: dict[str, Any] = {"advantages": [1, 3], "returns": [1, 3], "entropy": [1, 1]}
    weighted, plain = loss_of(**rows, weights=[0.5, 2]), loss_of(**rows)
    assert float(weighted.policy) == pytest.approx(-0.75)
    assert float(plain.policy) == pytest.approx(0, abs=1e-6)
    assert weighted.value == plain.value
    assert weighted.entropy == plain.entropy


@pytest.mark.parametrize("log_ratio", [90.0, 1e4, 3e38, -90.0, -3e38])
def test_a_row_whose_ratio_would_overflow_leaves_the_gradient_of_the_others(log_ratio: float) -> None:
    log_probs = torch.tensor([log_ratio, log_ratio, 0.0, 0.0], requires_grad=True)
    loss = loss_of(log_probs=log_probs, advantages=[-1, 1, -1, 1])
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert math.isfinite(loss.total.item())
    assert math.isfinite(loss.approx_kl.item())
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([0, 0, 0.25, -0.25])


def test_ratio_one_means_no_clipping_and_no_divergence() -> None:
    loss = loss_of(log_probs=[-1.5, -0.5], old_log_probs=[-1.5, -0.5], advantages=[1, 2])
    assert float(loss.clip_fraction) == 0.0
    assert float(loss.approx_kl) == 0.0
    assert float(loss.policy) == pytest.approx(0.0, abs=1e-7)


def test_the_clip_fraction_is_the_share_of_rows_whose_ratio_left_the_range() -> None:
    ratios = [0.5, 0.81, 1.0, 1.19, 1.5]
    loss = loss_of(log_probs=[math.log(ratio) for ratio in ratios])
    assert float(loss.clip_fraction) == pytest.approx(2 / 5)


def test_a_clipped_row_moves_the_policy_no_further_but_an_unclipped_one_does() -> None:
    """Both rows have ratio 2; only the one with the higher advantage has gained enough."""
    log_probs = torch.full((2,), math.log(2), requires_grad=True)
    loss_of(log_probs=log_probs, advantages=[-1, 1]).total.backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([1.0, 0.0])


def test_the_entropy_bonus_lowers_the_loss() -> None:
    assert float(loss_of(entropy=[2.0], entropy_coef=0.5).total) == pytest.approx(-1.0)


# Known failure KF-PPO-03.
@pytest.mark.parametrize("advantages", [[3.5], [0.0], [2.0, 2.0], [-1e6] * 5], ids=str)
def test_one_row_or_equal_advantages_give_a_finite_loss(advantages: list[float]) -> None:
    assert math.isfinite(float(loss_of(advantages=advantages).total))


@pytest.mark.parametrize("advantage", [0.0, 0.1, 1.0, 3.3, 1000.1, -12345.678])
def test_equal_advantages_are_normalised_to_zero(advantage: float) -> None:
    """The float32 mean of equal numbers may miss them by a rounding; that is no signal."""
    assert float(normalise(torch.full((7,), advantage)).abs().max()) < 1e-2


def test_advantages_are_normalised_to_mean_zero_and_deviation_one() -> None:
    assert normalise(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])


# Known failure KF-PPO-04.
def test_a_critic_that_is_right_has_value_loss_exactly_zero() -> None:
    returns = torch.arange(64.0)
    assert float(loss_of(values=returns.clone(), returns=returns).value) == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(64, 1), (1, 64), (1,), (), (63,)], ids=str)
def test_a_quantity_of_another_shape_raises_instead_of_broadcasting(
    name: str, shape: tuple[int, ...]
) -> None:
    rows = {other: torch.zeros(64) for other in NAMES}
    with pytest.raises(ValueError, match="one shape"):
        loss_of(**{**rows, name: torch.zeros(shape)})  # type: ignore[arg-type]


def test_quantities_that_agree_on_a_shape_with_two_dimensions_raise_as_well() -> None:
    with pytest.raises(ValueError, match="one shape"):
        loss_of(log_probs=torch.zeros(8, 1))


def test_only_the_total_loss_carries_a_gradient() -> None:
    loss = loss_of(log_probs=torch.zeros(2, requires_grad=True), advantages=[0.0, 1.0])
    watched = [field.name for field in fields(loss) if getattr(loss, field.name).requires_grad]
    assert watched == ["total"]
