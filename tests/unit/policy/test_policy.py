"""The policy in torch and the same policy in numpy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dppo_redis.errors import WireError
from dppo_redis.policy.actor_critic import ActorCritic, Evaluated
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_weights, encode_weights
from dppo_redis.spaces.observations import Array
from tests.factories import (
    actions_of,
    box,
    constant_model,
    discrete,
    inputs_of,
    make_model,
    make_policy,
    make_rollout,
    make_spec,
    make_weights,
    normal,
    scattered_model,
)

WIDE_BOX = box((-1, 1), (0, math.inf), (-math.inf, math.inf))
SPECS = [
    pytest.param(make_spec(action=discrete(5), hidden=(16, 16)), id="discrete tanh"),
    pytest.param(make_spec(action=discrete(5), hidden=(16, 16), activation="relu"), id="discrete relu"),
    pytest.param(make_spec(action=discrete(2), hidden=(7,)), id="one hidden layer"),
    pytest.param(make_spec(action=WIDE_BOX, hidden=(16, 16)), id="box tanh"),
    pytest.param(make_spec(action=WIDE_BOX, hidden=(16, 16), activation="relu"), id="box relu"),
]


def evaluated(spec: Spec, model: ActorCritic, observations: Array, actions: Array) -> Evaluated:
    """The learner's log-probabilities, entropies and values of rows."""
    with torch.no_grad():
        return model.evaluate(inputs_of(spec, observations), actions_of(spec, actions))


@pytest.mark.parametrize("spec", SPECS)
def test_numpy_and_torch_give_the_same_outputs(spec: Spec) -> None:
    model = scattered_model(spec)
    observations = normal(np.random.default_rng(0), 100, spec.observation.size)
    with torch.no_grad():
        expected = model.policy(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(make_policy(spec, model).outputs(observations), expected, rtol=1e-5, atol=1e-5)


# Known failure KF-PPO-08.
@pytest.mark.parametrize("spec", SPECS)
def test_the_ratio_is_one_before_the_first_gradient_step(spec: Spec) -> None:
    model = scattered_model(spec)
    policy = make_policy(spec, model)
    observations = 3 * normal(np.random.default_rng(1), 64, 8, spec.observation.size)
    outputs = policy.outputs(observations)
    actions = policy.sample(outputs, policy.noise(np.random.default_rng(2), 64, 8))
    acted = policy.log_probs(outputs, actions).reshape(-1)
    rows = observations.reshape(512, -1), actions.reshape(512, *actions.shape[2:])
    learned = evaluated(spec, model, *rows).log_probs.numpy()
    assert np.abs(np.exp(learned - acted) - 1).max() < 1e-4
    assert acted.dtype == np.float32


@pytest.mark.parametrize("spec", SPECS)
def test_log_probabilities_and_entropy_are_those_of_torch_distributions(spec: Spec) -> None:
    model = scattered_model(spec)
    rollout = make_rollout(spec)
    observations = rollout.observations.reshape(8, -1)
    actions = rollout.actions.reshape(8, *spec.action.row_shape)
    found = evaluated(spec, model, observations, actions)
    with torch.no_grad():
        outputs = model.policy(torch.from_numpy(observations))
    expected = (
        torch.distributions.Independent(torch.distributions.Normal(outputs, model.log_std.exp()), 1)
        if spec.action.dimensions
        else torch.distributions.Categorical(logits=outputs)
    )
    log_probs = expected.log_prob(torch.from_numpy(actions))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found.log_probs, log_probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.entropy, expected.entropy(), rtol=1e-4, atol=1e-5)  # type: ignore[no-untyped-call]


def test_a_categorical_worked_by_hand() -> None:
    """Logits 0 and log 3 are probabilities 1/4 and 3/4."""
    spec = make_spec(action=discrete(2))
    model = constant_model(spec, [0, math.log(3)])
    found = evaluated(spec, model, np.zeros((2, 2), np.float32), np.array([0, 1]))
    assert found.log_probs.tolist() == pytest.approx([math.log(1 / 4), math.log(3 / 4)])
    assert found.entropy.tolist() == pytest.approx([1 / 4 * math.log(4) + 3 / 4 * math.log(4 / 3)] * 2)
    policy = make_policy(spec, model)
    outputs = policy.outputs(np.zeros((1, 2, 2), np.float32))
    assert policy.log_probs(outputs, np.array([[0, 1]]))[0] == pytest.approx(
        [math.log(1 / 4), math.log(3 / 4)]
    )


def test_a_gaussian_worked_by_hand() -> None:
    """Means 0 and 1, deviation 2, action (2, 1): z is (1, 0)."""
    spec = make_spec(action=box())
    model = constant_model(spec, [0, 1], log_std=math.log(2))
    by_hand = -0.5 - 2 * math.log(2) - math.log(2 * math.pi)
    found = evaluated(spec, model, np.zeros((1, 2), np.float32), np.array([[2, 1]], np.float32))
    assert found.log_probs.tolist() == pytest.approx([by_hand])
    assert found.entropy.tolist() == pytest.approx([1 + 2 * math.log(2) + math.log(2 * math.pi)])
    policy = make_policy(spec, model)
    outputs = policy.outputs(np.zeros((1, 1, 2), np.float32))
    assert policy.log_probs(outputs, np.array([[[2, 1]]], np.float32))[0] == pytest.approx([by_hand])


def gram_of(layer: nn.Module) -> Tensor:
    """W W^T or W^T W, whichever is smaller; gain^2 times the identity for an orthogonal layer."""
    weight = layer.get_parameter("weight").detach()
    return weight @ weight.T if weight.shape[0] < weight.shape[1] else weight.T @ weight


@pytest.mark.parametrize("network", ["policy", "value"])
def test_layers_start_orthogonal_with_their_own_gain_and_no_bias(network: str) -> None:
    model = make_model(make_spec(action=discrete(3), observation_size=6, hidden=(32, 16)))
    layers = [module for module in model.get_submodule(network).children() if isinstance(module, nn.Linear)]
    head_gain = {"policy": 0.01, "value": 1.0}[network]
    for layer, gain in zip(layers, [math.sqrt(2), math.sqrt(2), head_gain], strict=True):
        gram = gram_of(layer)
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=1e-4, atol=1e-6)
        assert not layer.bias.any()


def test_a_continuous_policy_starts_with_deviation_one() -> None:
    assert make_model(make_spec(action=box())).log_std.tolist() == [0, 0]


def test_categories_are_drawn_as_often_as_their_probability_says() -> None:
    """Chi-square of 20,000 draws, three degrees of freedom: above 16.3 in one of 1,000 seeds."""
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    spec = make_spec(action=discrete(4))
    policy = make_policy(spec, constant_model(spec, np.log(probabilities).tolist()))
    outputs = policy.outputs(np.zeros((1, 20_000, 2), np.float32))
    drawn = policy.sample(outputs, policy.noise(np.random.default_rng(0), 1, 20_000))
    expected = 20_000 * probabilities
    counts = np.bincount(drawn.reshape(-1), minlength=4)
    assert (np.square(counts - expected) / expected).sum() < 16.3


def test_continuous_actions_have_the_mean_and_deviation_of_the_policy() -> None:
    """The mean of 20,000 draws of deviation 0.5 is within 0.0035 of its place two times of three."""
    spec = make_spec(action=box())
    policy = make_policy(spec, constant_model(spec, [3, -7], log_std=math.log(0.5)))
    outputs = policy.outputs(np.zeros((1, 20_000, 2), np.float32))
    drawn = policy.sample(outputs, policy.noise(np.random.default_rng(0), 1, 20_000))[0]
    assert drawn.mean(axis=0) == pytest.approx([3, -7], abs=4 * 0.0035)
    assert drawn.std(axis=0) == pytest.approx([0.5, 0.5], abs=0.01)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


@pytest.mark.parametrize("spec", SPECS)
def test_noise_is_finite_float32_of_a_whole_rollout_and_the_same_for_the_same_seed(spec: Spec) -> None:
    policy = make_policy(spec)
    first, again, other = (policy.noise(np.random.default_rng(seed), 50, 20) for seed in (1, 1, 2))
    assert first.shape == (50, 20, spec.action.outputs)
    assert first.dtype == np.float32
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_greedy_takes_the_most_likely_category() -> None:
    spec = make_spec(action=discrete(3))
    policy = make_policy(spec, constant_model(spec, [0, 2, 1]))
    assert policy.greedy(policy.outputs(np.zeros((2, 2), np.float32))).tolist() == [1, 1]


def test_greedy_takes_the_mean() -> None:
    spec = make_spec(action=box())
    policy = make_policy(spec, constant_model(spec, [3, -7], log_std=2.0))
    assert policy.greedy(policy.outputs(np.zeros((1, 2), np.float32))).tolist() == [[3, -7]]


@pytest.mark.parametrize("spec", SPECS)
def test_acting_leaves_the_observations_as_they_were(spec: Spec) -> None:
    observations = normal(np.random.default_rng(0), 4, spec.observation.size)
    before = observations.copy()
    make_policy(spec).outputs(observations)
    np.testing.assert_array_equal(observations, before)


def test_logits_of_any_size_give_finite_log_probabilities() -> None:
    spec = make_spec(action=discrete(3))
    policy = make_policy(spec)
    logits = np.array([[[1e30, -1e30, 0.0]]], np.float32)
    assert np.isfinite(policy.log_probs(logits, np.array([[0]]))).all()
    assert np.isfinite(policy.log_probs(logits, np.array([[1]]))).all()


@pytest.mark.parametrize("spec", SPECS)
def test_a_publication_holds_copies_of_the_policy_and_nothing_of_the_critic(spec: Spec) -> None:
    model = scattered_model(spec)
    arrays = model.acting_arrays()
    expected = {name for name, _ in model.named_parameters() if not name.startswith("value.")}
    assert set(arrays) == expected
    before = {name: array.copy() for name, array in arrays.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])
        assert array.dtype == np.float32


@pytest.mark.parametrize("spec", SPECS)
def test_weights_that_crossed_the_wire_act_like_those_that_did_not(spec: Spec) -> None:
    weights = make_weights(spec, scattered_model(spec))
    observations = normal(np.random.default_rng(0), 4, spec.observation.size)
    decoded = ActingPolicy(decode_weights(encode_weights(weights)), spec)
    np.testing.assert_array_equal(
        decoded.outputs(observations), ActingPolicy(weights, spec).outputs(observations)
    )


def test_weights_of_another_spec_are_refused() -> None:
    """Though their shapes would fit."""
    with pytest.raises(WireError, match="this run has") as caught:
        ActingPolicy(make_weights(make_spec(rollout_steps=4)), make_spec(rollout_steps=5))
    assert caught.value.reason == "spec"


@pytest.mark.parametrize("change", ["missing", "transposed"])
def test_weights_that_do_not_fit_the_network_are_refused(change: str) -> None:
    spec = make_spec(action=box())
    weights = make_weights(spec)
    taken = weights.arrays.pop("policy.0.weight")
    if change == "transposed":
        weights.arrays["policy.0.weight"] = taken.T
    with pytest.raises(WireError, match=r"policy\.0\.weight") as caught:
        ActingPolicy(weights, spec)
    assert caught.value.reason == "shape"


def test_a_continuous_policy_without_deviations_is_refused() -> None:
    spec = make_spec(action=box())
    weights = make_weights(spec)
    del weights.arrays["log_std"]
    with pytest.raises(WireError, match="log_std"):
        ActingPolicy(weights, spec)
