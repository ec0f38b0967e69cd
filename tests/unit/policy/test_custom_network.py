"""A network of a user's own, by module:Class."""

import numpy as np
import pytest
import torch

from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.custom import load_custom
from dppo_redis.policy.networks import InputSizes
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.wire import decode_weights, encode_weights
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate
from tests.factories import (
    CPU,
    box,
    discrete,
    inputs_of,
    make_config,
    make_model,
    make_policy,
    make_ppo,
    make_rollout,
    make_spec,
    make_weights,
)
from tests.networks import Noisy, Slow
from tests.unit.playing import SMALL, play, spec_of

CUSTOM = SMALL.model_copy(update={"custom": "tests.networks:Noisy"})
SIZES = InputSizes(features=2, images=(), highs=())


def test_it_is_built_with_the_sizes_of_what_it_reads() -> None:
    """Vectors of 2 and 3, two flags and a category of three; a picture of three colours; two frames."""
    spec = spec_of("Named", network=CUSTOM, frame_stack=2)
    assert InputSizes.of(spec.observation, 2) == InputSizes(
        features=2 * (2 + 3 + 2 + 3), images=((2 * 3, 8, 9),), highs=(255.0,)
    )
    model = make_model(spec)
    assert isinstance(model.custom, Noisy)
    assert model.trunk is None


@pytest.mark.parametrize("action", [discrete(3), box()], ids=["discrete", "box"])
def test_acting_and_learning_use_the_custom_network_alone(action: object) -> None:
    spec = make_spec(network=CUSTOM, action=action)  # type: ignore[arg-type]
    model = make_model(spec)
    rows = np.array([[1, 2], [-1, 0.5]], np.float32)
    inputs = inputs_of(spec, rows)
    assert model.custom is not None
    with torch.no_grad():
        torch.testing.assert_close(model.outputs(inputs), model.custom.policy(inputs))
        torch.testing.assert_close(model.values(inputs), model.custom.value(inputs))
        expected = model.custom.policy(inputs).numpy()
    np.testing.assert_array_equal(make_policy(spec, model).outputs(rows), expected)


# Known failure KF-PPO-08, with dropout and batch statistics.
def test_dropout_and_batch_statistics_are_off_in_acting_and_learning() -> None:
    spec = spec_of("Matrix", network=CUSTOM)
    model = make_model(spec)
    inputs = inputs_of(spec, np.ones((4, 6), np.float32))
    before = {name: x.clone() for name, x in model.state_dict().items() if "running" in name}
    assert len(before) == 2
    updates = PpoUpdate(model, spec, make_ppo(minibatch_size=4), 3, 0, CPU)
    report = updates.update(stack(play(spec, policy=make_policy(spec, model))), 0.0)
    assert report.ratio_error is not None
    assert report.ratio_error < 1e-4
    assert not any(module.training for module in model.modules())
    assert torch.equal(model.values(inputs), model.values(inputs))
    for name, x in before.items():
        assert torch.equal(model.state_dict()[name], x)


def test_the_test_of_a_network_does_not_change_its_statistics() -> None:
    network = load_custom("tests.networks:Noisy", SIZES, outputs=2)
    statistics = dict(network.named_buffers())
    assert not statistics["body.1.running_mean"].any()
    assert (statistics["body.1.running_var"] == 1).all()
    assert not network.training


def test_all_its_parameters_are_trained() -> None:
    spec = make_spec(network=CUSTOM)
    model = make_model(spec)
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    PpoUpdate(model, spec, make_ppo(), 1, 0, CPU).update(stack([make_rollout(spec)]), 0.0)
    assert before
    assert all(not torch.equal(x, before[name]) for name, x in model.named_parameters())


def test_its_weights_and_its_statistics_cross_the_wire() -> None:
    spec = make_spec(network=CUSTOM, action=box())
    model = make_model(spec)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.add_(0.5)
    weights = decode_weights(encode_weights(make_weights(spec, model)))
    rows = np.ones((1, 2), np.float32)
    np.testing.assert_array_equal(
        ActingPolicy(weights, spec).outputs(rows), make_policy(spec, model).outputs(rows)
    )
    assert (make_policy(spec, make_model(spec)).outputs(rows) != make_policy(spec, model).outputs(rows)).any()


def test_an_actor_builds_the_custom_network_once() -> None:
    """Each publication's policy goes on playing its own weights."""
    spec = make_spec(network=SMALL.model_copy(update={"custom": "tests.networks:Slow"}))
    rows = np.ones((1, 2), np.float32)
    models = [make_model(spec, seed) for seed in range(3)]
    first = make_policy(spec, models[0])
    built = Slow.built
    others = [make_policy(spec, model) for model in models[1:]]
    assert Slow.built == built
    for policy, model in zip((first, *others), models, strict=True):
        with torch.no_grad():
            expected = model.outputs(inputs_of(spec, rows)).numpy()
        np.testing.assert_array_equal(policy.outputs(rows), expected)


def test_a_network_that_reads_the_action_mask_is_tested_with_a_mask() -> None:
    spec = spec_of("Masked", network=SMALL.model_copy(update={"custom": "tests.networks:ReadsMask"}))
    assert InputSizes.of(spec.observation, 2).choices == spec.action.choices
    model = make_model(spec)
    report = PpoUpdate(model, spec, make_ppo(), 1, 0, CPU).update(
        stack(play(spec, policy=make_policy(spec, model))), 0.0
    )
    assert report.ratio_error is not None
    assert report.ratio_error < 1e-4


def test_weights_of_another_network_are_refused() -> None:
    spec = make_spec(network=CUSTOM)
    weights = make_weights(spec)
    del weights.arrays["custom.head.bias"]
    with pytest.raises(WireError, match=r"custom\.head\.bias") as caught:
        ActingPolicy(weights, spec)
    assert caught.value.reason == "shape"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Nothing", "cannot be imported"),
        (
            "TooManyOutputs",
            r"TooManyOutputs.policy returned \(\(3, 3\).* for 3 rows, not \(3, 2\) of float32",
        ),
        ("ColumnOfValues", r"ColumnOfValues.value returned \(\(3, 1\).* not \(3,\) of float32"),
        ("DoubleValues", r"DoubleValues.value returned .*float64.* not \(3,\) of float32"),
        ("ArrayPolicy", r"ArrayPolicy.policy returned ndarray for 3 rows, not \(3, 2\)"),
        (
            "NoValue",
            r"breaks its contract, Class\(sizes, outputs\) with policy\(inputs\) and value\(inputs\)",
        ),
        ("NoArguments", "breaks its contract.*TypeError"),
        ("Raises", "breaks its contract.*RuntimeError: the two shapes do not fit$"),
        ("CannotBeCopied", "breaks its contract.*TypeError: it holds a socket"),
        ("Squeezed", r"Squeezed.value returned \(\(\), .* for 1 row, not \(1,\) of float32"),
        (
            "AlwaysDropping",
            r"AlwaysDropping.policy returns different outputs for the same rows: eval\(\) must",
        ),
        ("Attending", r"Attending.value returns different outputs for a row alone and among others"),
        ("NoModule", "breaks its contract.*a NoModule is no torch Module"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused_by_name(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^network.custom: .*{says}") as caught:
        load_custom(f"tests.networks:{name}", SIZES, outputs=2)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["Noisy", "no.such.module:Noisy", "tests.networks:", ":Noisy", "", "tests.broken_module:Noisy"]
)
def test_a_name_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"network\.custom: .* cannot be imported as module:Name"):
        load_custom(name, SIZES, outputs=2)


def test_a_minimal_network_is_enough() -> None:
    spec = make_spec(network=SMALL.model_copy(update={"custom": "tests.networks:Linear"}), rollout_steps=5)
    model = make_model(spec)
    rollout = make_rollout(spec, policy=make_policy(spec, model))
    report = PpoUpdate(model, spec, make_ppo(), 1, 0, CPU).update(stack([rollout]), 0.0)
    assert report.ratio_error is not None
    assert report.ratio_error < 1e-4


def test_it_is_refused_together_with_a_memory() -> None:
    with pytest.raises(
        ConfigurationError, match=r"network.custom and network.memory cannot be used together"
    ):
        make_config(network={"custom": "tests.networks:Noisy", "memory": "lstm"})


def test_a_broken_network_is_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"network\.custom"):
        ActorCritic(make_spec(network=SMALL.model_copy(update={"custom": "tests.networks:ColumnOfValues"})))
