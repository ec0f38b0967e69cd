"""One PPO pass over a batch."""

import itertools
import math
from dataclasses import asdict, replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.protocol.config import Correction, PpoConfig
from dppo_redis.protocol.spec import Spec
from learner.ppo.batch import Batch, stack
from learner.ppo.update import PpoUpdate, UpdateReport
from tests.factories import (
    CPU,
    actions_of,
    box,
    constant_model,
    discrete,
    inputs_of,
    make_batch,
    make_model,
    make_policy,
    make_ppo,
    make_rollout,
    make_spec,
    normal,
    scattered_model,
)

DISCRETE = make_spec(action=discrete(3))
BOX = make_spec(action=box())
SPECS = pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])


def updater(
    spec: Spec, model: ActorCritic, ppo: PpoConfig | None = None, update_epochs: int = 2, seed: int = 0
) -> PpoUpdate:
    return PpoUpdate(model, spec, ppo or make_ppo(), update_epochs, seed, CPU)


def trained(
    spec: Spec, batch: Batch, model: ActorCritic, progress: float = 0.0, **ppo: object
) -> UpdateReport:
    return updater(spec, model, make_ppo(**ppo)).update(batch, progress)


def weights_of(model: ActorCritic) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_finite(report: UpdateReport, model: ActorCritic) -> None:
    numbers = asdict(report)
    drifts = [numbers.pop("drift"), *numbers.pop("drift_by_staleness").values()]
    everything = [*numbers.values(), *(number for drift in drifts for number in drift.values())]
    assert all(math.isfinite(number) for number in everything if number is not None)
    assert bool(weights_of(model).isfinite().all())


def fresh_batch(spec: Spec, model: ActorCritic, count: int = 4, seed: int = 0) -> Batch:
    """Sampled with `model`; every row is an episode of its own."""
    policy = make_policy(spec, model)
    rollout = make_rollout(spec, count=count, seed=seed, terminated=np.ndindex(spec.rollout_steps, count))
    noise = policy.noise(np.random.default_rng([seed, 1]), spec.rollout_steps, count)
    outputs = policy.outputs(rollout.observations)
    actions = policy.sample(outputs, noise)
    return stack([replace(rollout, actions=actions, log_probs=policy.log_probs(outputs, actions))])


def ratio_error_of(spec: Spec, batch: Batch, model: ActorCritic) -> float:
    error = trained(spec, batch, model).ratio_error
    assert error is not None
    return error


# Known failure KF-PPO-03.
@SPECS
def test_a_last_minibatch_of_one_row_leaves_everything_finite(spec: Spec) -> None:
    """Nine rows by four."""
    spec = replace(spec, rollout_steps=3)
    model = make_model(spec)
    report = trained(spec, make_batch(spec, count=3), model, minibatch_size=4)
    assert report.gradient_steps == 2 * 3
    assert_finite(report, model)


@SPECS
def test_equal_advantages_leave_everything_finite(spec: Spec) -> None:
    """Each row is an episode of reward 1 from the same observation."""
    batch = fresh_batch(spec, make_model(spec))
    same = replace(
        batch,
        rewards=np.ones_like(batch.rewards),
        observations=np.ones_like(batch.observations),
    )
    model = make_model(spec)
    assert_finite(trained(spec, same, model), model)


@SPECS
def test_one_valid_row_leaves_everything_finite(spec: Spec) -> None:
    batch = make_batch(spec)
    valid = np.zeros_like(batch.valid)
    valid[2, 1] = True
    model = make_model(spec)
    report = trained(spec, replace(batch, valid=valid), model)
    assert report.gradient_steps == 2
    assert_finite(report, model)


@SPECS
def test_a_batch_without_valid_rows_makes_no_step(spec: Spec) -> None:
    batch = make_batch(spec)
    model = make_model(spec)
    before = weights_of(model)
    report = trained(spec, replace(batch, valid=np.zeros_like(batch.valid)), model)
    assert report.gradient_steps == 0
    assert report.ratio_error is None
    assert_finite(report, model)
    assert torch.equal(weights_of(model), before)


@SPECS
def test_the_ratio_is_one_before_the_first_step_on_fresh_data(spec: Spec) -> None:
    model = scattered_model(spec)
    assert ratio_error_of(spec, fresh_batch(spec, model), model) < 1e-4


@SPECS
def test_the_ratio_shows_data_of_another_policy(spec: Spec) -> None:
    assert ratio_error_of(spec, fresh_batch(spec, make_model(spec)), scattered_model(spec)) > 0.1


@SPECS
def test_the_ratio_is_judged_by_rollouts_of_staleness_zero_alone(spec: Spec) -> None:
    """The other ones were sampled with another policy, as stale ones are."""
    model = scattered_model(spec)
    fresh, stale = fresh_batch(spec, model), fresh_batch(spec, make_model(spec))
    mixed = replace(fresh, log_probs=np.concatenate([fresh.log_probs[:, :2], stale.log_probs[:, 2:]], axis=1))
    assert ratio_error_of(spec, replace(mixed, staleness=np.array([0, 0, 1, 3])), model) < 1e-4
    assert ratio_error_of(spec, replace(mixed, staleness=np.array([1, 0, 0, 3])), scattered_model(spec)) > 0.1


def test_without_a_rollout_of_staleness_zero_no_ratio_is_reported() -> None:
    batch = replace(make_batch(DISCRETE), staleness=np.array([1, 2]))
    assert trained(DISCRETE, batch, make_model(DISCRETE)).ratio_error is None


@SPECS
def test_the_same_seed_and_batch_give_the_same_weights_bit_for_bit(spec: Spec) -> None:
    def after(seed: int) -> Tensor:
        model = make_model(spec)
        updates = updater(spec, model, make_ppo(minibatch_size=4), seed=seed)
        for batch_seed in range(3):
            updates.update(make_batch(spec, seed=batch_seed), 0.0)
        return weights_of(model)

    assert torch.equal(after(1), after(1))
    assert not torch.equal(after(1), after(2))


def probability_of_first(spec: Spec, model: ActorCritic) -> float:
    inputs, actions = inputs_of(spec, np.zeros((1, 2), np.float32)), actions_of(spec, np.zeros(1, np.int64))
    with torch.no_grad():
        return float(model.evaluate(inputs, actions).log_probs.exp())


def test_updates_raise_the_probability_of_the_better_action() -> None:
    """A bandit of two arms, of which the first pays 1 and the second nothing."""
    spec = make_spec(action=discrete(2), rollout_steps=16)
    model = make_model(spec)
    updates = updater(spec, model, make_ppo(learning_rate=0.01), update_epochs=4)
    reached = [probability_of_first(spec, model)]
    for seed in range(15):
        batch = fresh_batch(spec, model, seed=seed)
        rewards = (batch.actions == 0).astype(np.float32)
        updates.update(replace(batch, rewards=rewards, observations=np.zeros_like(batch.observations)), 0.0)
        reached.append(probability_of_first(spec, model))
    assert reached[0] == pytest.approx(0.5, abs=0.02)
    assert reached[1] > reached[0]
    assert reached[-1] > 0.9


def test_updates_move_a_continuous_policy_to_the_better_actions() -> None:
    """The reward is highest at (0.5, -0.5); the policy begins at (0, 0)."""
    spec = make_spec(action=box(), rollout_steps=64)
    model = constant_model(spec, [0, 0], log_std=-1.0)
    updates = updater(spec, model, make_ppo(learning_rate=0.01), update_epochs=4)
    for seed in range(20):
        batch = fresh_batch(spec, model, seed=seed)
        rewards = -np.square(batch.actions - np.array([0.5, -0.5])).sum(-1).astype(np.float32)
        updates.update(replace(batch, rewards=rewards), 0.0)
    with torch.no_grad():
        mean = model.policy(torch.zeros(1, 2))[0].tolist()
    assert mean == pytest.approx([0.5, -0.5], abs=0.2)


def test_the_critic_learns_the_returns() -> None:
    """Every episode is one step of reward 3."""
    spec = make_spec(action=discrete(2), rollout_steps=16)
    model = make_model(spec)
    updates = updater(spec, model, make_ppo(learning_rate=0.01), update_epochs=10)
    losses = []
    for seed in range(10):
        batch = fresh_batch(spec, model, seed=seed)
        losses.append(updates.update(replace(batch, rewards=np.full_like(batch.rewards, 3)), 0.0).value_loss)
    assert losses[0] > 1
    assert losses[-1] < 0.02


@pytest.mark.parametrize(("progress", "share"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.5, 0.0)])
def test_the_learning_rate_falls_linearly_to_zero(progress: float, share: float) -> None:
    model = make_model(DISCRETE)
    before = weights_of(model)
    report = trained(
        DISCRETE,
        make_batch(DISCRETE),
        model,
        progress=progress,
        learning_rate=0.01,
        anneal_learning_rate=True,
    )
    assert report.learning_rate == pytest.approx(0.01 * share)
    assert torch.equal(weights_of(model), before) == (share == 0)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_clip_range_and_entropy_bonus_fall_likewise(progress: float) -> None:
    ppo = {"clip_epsilon": 0.4, "entropy_coef": 0.2}
    left = 1 - progress
    annealed = weights_of(_after(progress, anneal_clip=True, anneal_entropy=True, **ppo))
    fixed = weights_of(_after(0.0, clip_epsilon=0.4 * left or 1e-12, entropy_coef=0.2 * left))
    assert annealed == pytest.approx(fixed, abs=1e-5)


def _after(progress: float, **ppo: object) -> ActorCritic:
    model = make_model(DISCRETE)
    trained(DISCRETE, make_batch(DISCRETE), model, progress=progress, **ppo)
    return model


def test_passes_end_once_the_divergence_of_one_exceeds_its_target() -> None:
    """Far too large a step: the second pass already sees another policy."""
    knobs = {"learning_rate": 0.5, "minibatch_size": 16}
    for target_kl, steps in ((None, 6), (1e6, 6), (1e-4, 2)):
        model = make_model(DISCRETE)
        updates = updater(DISCRETE, model, make_ppo(target_kl=target_kl, **knobs), update_epochs=6)
        assert updates.update(fresh_batch(DISCRETE, model), 0.0).gradient_steps == steps


def test_the_learning_rate_stays_without_annealing() -> None:
    report = trained(DISCRETE, make_batch(DISCRETE), make_model(DISCRETE), progress=0.9, learning_rate=0.01)
    assert report.learning_rate == 0.01


def test_an_update_makes_all_its_passes_over_all_minibatches() -> None:
    """Eight rows by three are three minibatches."""
    updates = updater(DISCRETE, make_model(DISCRETE), make_ppo(minibatch_size=3), update_epochs=5)
    assert updates.update(make_batch(DISCRETE), 0.0).gradient_steps == 5 * 3


def test_gradients_are_clipped_to_the_norm_given() -> None:
    """Adam's first moment after one step is a tenth of the gradient it was given."""
    updates = updater(DISCRETE, scattered_model(DISCRETE), make_ppo(max_grad_norm=0.125), update_epochs=1)
    batch = make_batch(DISCRETE)
    updates.update(replace(batch, rewards=1000 * batch.rewards), 0.0)
    norms = [float(state["exp_avg"].norm()) for state in updates.optimizer.state.values()]
    assert math.hypot(*norms) == pytest.approx(0.0125, rel=1e-3)


def test_the_report_shows_the_loss_of_the_first_step_when_there_is_only_one() -> None:
    """One row: its advantage is normalised to 0, its ratio is 1, its critic is 0.

    Returns are then the reward 2, so the value loss is 2^2 / 2; the entropy of two even arms is log 2.
    """
    spec = make_spec(action=discrete(2), rollout_steps=1)
    model = constant_model(spec, [0, 0])
    with torch.no_grad():
        for parameter in model.value.parameters():
            parameter.zero_()
    batch = replace(fresh_batch(spec, model, count=1), rewards=np.array([[2]], np.float32))
    report = updater(spec, model, update_epochs=1).update(batch, 0.0)
    expected = UpdateReport(
        policy_loss=0.0,
        value_loss=2.0,
        entropy=math.log(2),
        approx_kl=0.0,
        clip_fraction=0.0,
        explained_variance=0.0,
        ratio_error=0.0,
        learning_rate=1e-3,
        gamma=0.99,
        episode_steps=1.0,
        gradient_steps=1,
        skipped_steps=0,
        outlier_observations=0,
        outlier_rewards=0,
        drift=report.drift,
        drift_by_staleness=report.drift_by_staleness,
    )
    numbers, wanted = asdict(report), asdict(expected)
    for name in ("drift", "drift_by_staleness"):
        del numbers[name], wanted[name]
    assert numbers == pytest.approx(wanted, abs=1e-6)


def model_that_values_the_first_coordinate(spec: Spec, scale: float = 1.0) -> ActorCritic:
    """V(s) = scale x s[0], as relu(s[0]) - relu(-s[0])."""
    model = make_model(spec)
    hidden, _, head = model.value
    with torch.no_grad():
        hidden.get_parameter("weight").copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        head.get_parameter("weight").copy_(torch.tensor([[scale, -scale]]))
    return model


@pytest.mark.parametrize(
    ("end", "value_loss"),
    [
        (None, (1 - (2 + 0.5 * 4)) ** 2 / 2),
        ("truncated", (1 - (2 + 0.5 * 7)) ** 2 / 2),
        ("terminated", (1 - 2) ** 2 / 2),
    ],
    ids=str,
)
def test_returns_bootstrap_from_the_right_observation(end: str | None, value_loss: float) -> None:
    """Reward 2 and gamma 0.5; V is 1 before the step, 4 after it, and 7 at the true end."""
    spec = make_spec(rollout_steps=1, hidden=(2,), activation="relu")
    rollout = make_rollout(spec, count=1, **{end: [(0, 0)]} if end else {})  # type: ignore[arg-type]
    numbers = {
        "rewards": np.array([[2]], np.float32),
        "observations": np.array([[[1, 9]]], np.float32),
        "last_observations": np.array([[4, 9]], np.float32),
        "final_observations": np.array([[7, 9]] if end else np.empty((0, 2)), np.float32),
    }
    updates = updater(
        spec, model_that_values_the_first_coordinate(spec), make_ppo(gamma=0.5), update_epochs=1
    )
    report = updates.update(stack([replace(rollout, **numbers)]), 0.0)  # type: ignore[arg-type]
    assert report.value_loss == pytest.approx(value_loss)


def test_a_critic_that_is_right_explains_all_variance_and_a_constant_one_none() -> None:
    """Each row is an episode, whose reward is the first coordinate of its observation."""
    spec = make_spec(rollout_steps=32, hidden=(2,), activation="relu")
    batch = fresh_batch(spec, make_model(spec))
    batch = replace(batch, rewards=batch.observations[..., 0])

    def explained(scale: float) -> float:
        return trained(spec, batch, model_that_values_the_first_coordinate(spec, scale)).explained_variance

    assert explained(1.0) == pytest.approx(1.0, abs=1e-5)
    assert explained(0.0) == pytest.approx(0.0, abs=1e-5)
    assert explained(-1.0) == pytest.approx(-3.0, rel=1e-3)


# Known failure KF-ENV-01, the learner's side.
@SPECS
def test_rows_that_are_not_valid_have_no_influence_at_all(spec: Spec) -> None:
    """The dummy row of a reset comes after the row that ended the episode."""
    batch = make_batch(spec, terminated=[(0, 0)], truncated=[(2, 1)], invalid=[(1, 0), (3, 1)])

    def after(junk: float) -> Tensor:
        model = make_model(spec)
        spoiled = {name: getattr(batch, name).copy() for name in ("observations", "rewards", "log_probs")}
        for array in spoiled.values():
            array[~batch.valid] = junk
        updater(spec, model).update(replace(batch, **spoiled), 0.0)
        return weights_of(model)

    assert torch.equal(after(0), after(1000))


# Known failure KF-ENV-04: numbers that are finite, and pass validation, but near the end of their type.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@SPECS
@pytest.mark.parametrize(
    ("name", "number"),
    [("log_probs", -1000), ("log_probs", 1000), ("rewards", 3e38), ("rewards", 1e20), ("observations", 3e38)],
)
def test_absurd_but_finite_numbers_leave_the_weights_finite(spec: Spec, name: str, number: float) -> None:
    batch = make_batch(spec)
    array = getattr(batch, name).copy()
    array[1:3, 0] = number
    model = make_model(spec)
    trained(spec, replace(batch, **{name: array}), model)
    assert bool(weights_of(model).isfinite().all())


CORRECTIONS = pytest.mark.parametrize("correction", get_args(Correction))


def with_log_probs_of(spec: Spec, model: ActorCritic, batch: Batch) -> Batch:
    """The same rows as if sampled with `model`, whose log-probabilities are torch's own to the last bit."""
    t, n = batch.rewards.shape
    with torch.no_grad():
        log_probs = model.evaluate(
            inputs_of(spec, batch.observations.reshape(t * n, -1)),
            actions_of(spec, batch.actions.reshape(t * n, *spec.action.row_shape)),
        ).log_probs
    return replace(batch, log_probs=log_probs.reshape(t, n).numpy())


@SPECS
def test_on_fresh_data_every_correction_trains_as_plain_ppo_bit_for_bit(spec: Spec) -> None:
    batch = make_batch(spec, terminated=[(0, 0)], truncated=[(2, 1)], invalid=[(1, 0), (3, 1)])
    batch = with_log_probs_of(spec, scattered_model(spec), batch)

    def after(correction: str) -> Tensor:
        model = scattered_model(spec)
        trained(spec, batch, model, correction=correction, minibatch_size=4)
        return weights_of(model)

    plain = after("none")
    assert not torch.equal(plain, weights_of(scattered_model(spec)))
    assert all(torch.equal(after(correction), plain) for correction in get_args(Correction))


@SPECS
def test_on_old_data_each_correction_trains_in_its_own_way(spec: Spec) -> None:
    """The policies' log-probabilities differ by about 1 either way."""
    batch = with_log_probs_of(spec, scattered_model(spec), make_batch(spec, count=8))
    moved = normal(np.random.default_rng(0), *batch.log_probs.shape)
    batch = replace(batch, log_probs=batch.log_probs + moved)

    def after(correction: str) -> Tensor:
        model = scattered_model(spec)
        trained(spec, batch, model, correction=correction, importance_cap=1.1)
        return weights_of(model)

    results = [after(correction) for correction in get_args(Correction)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(results, 2))


@SPECS
@CORRECTIONS
@pytest.mark.parametrize("behaviour", [-1000, -100, 100, 1000, -3e38, 3e38])
def test_a_row_that_the_policies_disagree_about_wildly_costs_no_gradient_step(
    spec: Spec, correction: Correction, behaviour: float
) -> None:
    """The other rows go on to train: an overflow in one would have every minibatch skipped."""
    batch = make_batch(spec)
    log_probs = batch.log_probs.copy()
    log_probs[1, 0] = behaviour
    model = make_model(spec)
    before = weights_of(model)
    report = trained(spec, replace(batch, log_probs=log_probs), model, correction=correction)
    assert report.skipped_steps == 0
    assert_finite(report, model)
    assert not torch.equal(weights_of(model), before)


@SPECS
@CORRECTIONS
def test_rows_that_are_not_valid_have_no_influence_under_any_correction(
    spec: Spec, correction: Correction
) -> None:
    batch = make_batch(spec, terminated=[(0, 0)], truncated=[(2, 1)], invalid=[(1, 0), (3, 1)])

    def after(junk: float) -> tuple[Tensor, UpdateReport]:
        model = make_model(spec)
        spoiled = {name: getattr(batch, name).copy() for name in ("observations", "rewards", "log_probs")}
        for array in spoiled.values():
            array[~batch.valid] = junk
        report = trained(spec, replace(batch, **spoiled), model, correction=correction)
        return weights_of(model), report

    (weights, report), (spoiled_weights, spoiled_report) = after(0), after(1000)
    assert torch.equal(weights, spoiled_weights)
    assert report == spoiled_report


def test_the_report_has_the_drift_of_the_rows_of_each_staleness() -> None:
    """Two columns are as the learner's policy would sample, two were ten times as likely when sampled."""
    model = scattered_model(DISCRETE)
    batch = with_log_probs_of(DISCRETE, model, make_batch(DISCRETE, count=4, invalid=[(1, 0), (3, 2)]))
    likelier = np.log([1, 10, 1, 10]).astype(np.float32)
    batch = replace(batch, log_probs=batch.log_probs + likelier, staleness=np.array([0, 2, 0, 2]))
    report = trained(DISCRETE, batch, model)
    fresh, aged = report.drift_by_staleness[0], report.drift_by_staleness[2]
    assert list(report.drift_by_staleness) == [0, 2]
    assert (fresh.rows, aged.rows, report.drift.rows) == (6, 8, 14)
    assert (fresh.ratio, aged.ratio) == pytest.approx((1, 0.1), abs=1e-5)
    assert (fresh.clip_fraction, aged.clip_fraction) == (0, 1)
    assert report.drift.ratio == pytest.approx((6 + 0.8) / 14, abs=1e-5)
    assert report.ratio_error == pytest.approx(0, abs=1e-5)
