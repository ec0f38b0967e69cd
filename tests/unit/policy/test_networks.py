"""The networks that a spec builds, and their initial weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from torch import nn

from dppo_redis.errors import WireError
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.networks import ImageEncoder, Sequences
from dppo_redis.policy.numpy_policy import ActingPolicy, needs_torch
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_weights, encode_weights
from dppo_redis.spaces.gymnasium_spaces import describe_observations
from tests.factories import box, inputs_of, make_model, make_policy, make_rollout, make_spec, make_weights
from tests.unit.playing import GRU, LSTM, SMALL, lively_model, spec_of

SCREEN = make_spec(observation=describe_observations(Box(0, 255, (3, 84, 84), np.uint8)))
GRID = make_spec(observation=describe_observations(Box(0, 255, (8, 9, 3), np.uint8)))


def convolutions(model: ActorCritic) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    return [
        (m.in_channels, m.out_channels, m.kernel_size, m.stride)
        for m in model.modules()
        if isinstance(m, nn.Conv2d)
    ]


@pytest.mark.parametrize("frames", [1, 4])
def test_large_images_get_the_nature_cnn(frames: int) -> None:
    """Mnih et al. (2015): 8 x 8 by 4, 4 x 4 by 2, 3 x 3 by 1, then 512 units."""
    model = make_model(replace(SCREEN, frame_stack=frames))
    assert convolutions(model) == [
        (3 * frames, 32, (8, 8), (4, 4)),
        (32, 64, (4, 4), (2, 2)),
        (64, 64, (3, 3), (1, 1)),
    ]
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert (linear[0].in_features, linear[0].out_features) == (64 * 7 * 7, 512)


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (1, 1, 1), (3, 4), (2, 200), (35, 36, 3), (36, 36, 3), (210, 160, 3), (7, 7, 3)],
    ids=str,
)
def test_networks_read_images_of_any_size(shape: tuple[int, ...]) -> None:
    spec = make_spec(observation=describe_observations(Box(0, 255, shape, np.uint8)))
    outputs = make_policy(spec).outputs(np.zeros((2, *shape), np.uint8))
    assert outputs.shape == (2, 2)
    assert np.isfinite(outputs).all()


def test_vectors_have_two_networks_that_share_nothing() -> None:
    model = make_model(make_spec())
    assert model.trunk is None
    assert {name.partition(".")[0] for name, _ in model.named_parameters()} == {"policy", "value"}


@pytest.mark.parametrize(
    "spec", [GRID, make_spec(network=GRU), spec_of("Named")], ids=["image", "gru", "both"]
)
def test_with_images_or_a_memory_both_heads_share_a_trunk(spec: Spec) -> None:
    model = make_model(spec)
    inputs = inputs_of(spec, make_rollout(spec).observations[0])
    nothing = Sequences(torch.zeros(1, 2, dtype=torch.bool), torch.zeros(2, spec.network.state_size))
    inputs = inputs.with_sequences(nothing)
    assert model.trunk is not None
    for answer in (model.outputs(inputs).sum(), model.values(inputs).sum()):
        gradients = torch.autograd.grad(answer, list(model.trunk.parameters()), retain_graph=True)
        assert all(bool(gradient.any()) for gradient in gradients)
    assert [type(layer) for layer in (*model.policy, *model.value)] == [nn.Linear, nn.Linear]


def test_each_image_has_its_own_encoder() -> None:
    space = Dict(
        {"a": Box(0, 255, (8, 8), np.uint8), "b": Box(0, 1, (40, 40, 3), np.uint8), "c": Box(-1, 1, (2,))}
    )
    spec = make_spec(observation=describe_observations(space))
    model = make_model(spec)
    encoders = [module for module in model.modules() if isinstance(module, ImageEncoder)]
    assert [encoder.scale for encoder in encoders] == [1 / 255, 1]
    assert len({id(x) for encoder in encoders for x in encoder.parameters()}) == 2 * 3 + 2 * 4
    rows = np.zeros(3, spec.observation.row_dtype)
    rows["a"][1], rows["b"][2] = 255, 1
    with torch.no_grad():
        values = model.values(inputs_of(spec, rows)).tolist()
    assert len(set(values)) == 3, "both are looked at"


@pytest.mark.parametrize("spec", [SCREEN, GRID, make_spec(network=LSTM)], ids=["screen", "grid", "lstm"])
def test_shared_networks_start_orthogonal_with_the_gain_of_their_layer(spec: Spec) -> None:
    model = make_model(spec)
    gains = {"policy": 0.01, "value": 1.0, "trunk": math.sqrt(2), "memory": 1.0}
    for name, parameter in model.named_parameters():
        if "bias" in name:
            assert not parameter.any(), name
            continue
        rows = parameter.detach().flatten(1)
        gram = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
        expected = gains[name.partition(".")[0]] ** 2 * torch.eye(len(gram))
        torch.testing.assert_close(gram, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        (make_spec(), False),
        (make_spec(frame_stack=4, action=box()), False),
        (spec_of("Pair"), False),
        (spec_of("Masked"), False),
        (spec_of("Grid"), True),
        (make_spec(network=LSTM), True),
        (make_spec(network=SMALL.model_copy(update={"custom": "tests.networks:Linear"})), True),
    ],
    ids=["vector", "frames", "tuple", "mask", "image", "lstm", "custom"],
)
def test_torch_is_needed_only_for_what_numpy_cannot_play(spec: Spec, needed: bool) -> None:
    assert needs_torch(spec) == needed
    assert ("Torch" in type(make_policy(spec)._network).__name__) == needed


@pytest.mark.parametrize("env", ["Pair", "Categories", "Memory", "Masked", "Named", "Screen"])
@pytest.mark.parametrize("frames", [1, 3])
def test_actors_answer_what_the_learner_does(env: str, frames: int) -> None:
    spec = spec_of(env, frame_stack=frames)
    model = lively_model(spec)
    rows = make_rollout(replace(spec, rollout_steps=5 * frames)).observations[:, 0]
    rows = rows.reshape(5, frames, *rows.shape[1:]) if frames > 1 else rows
    with torch.no_grad():
        expected = model.outputs(inputs_of(spec, rows)).numpy()
    np.testing.assert_allclose(make_policy(spec, model).outputs(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [GRID, make_spec(network=GRU), spec_of("Named", network=LSTM)], ids=str)
@pytest.mark.parametrize("change", ["missing", "unknown", "transposed"])
def test_weights_that_do_not_fit_are_refused_by_name(spec: Spec, change: str) -> None:
    weights = make_weights(spec)
    name = "policy.0.weight"
    if change == "unknown":
        weights.arrays["policy.9.weight"] = weights.arrays[name]
        name = "policy.9.weight"
    else:
        taken = weights.arrays.pop(name)
        if change == "transposed":
            weights.arrays[name] = taken.T
    with pytest.raises(WireError, match=name.replace(".", r"\.")) as caught:
        ActingPolicy(weights, spec)
    assert caught.value.reason == "shape"


@pytest.mark.parametrize("env", ["Named", "Everything"])
def test_weights_that_crossed_the_wire_act_like_those_that_did_not(env: str) -> None:
    spec = spec_of(env, network=GRU)
    weights = make_weights(spec, lively_model(spec))
    rows = make_rollout(spec).observations[0]
    decoded = ActingPolicy(decode_weights(encode_weights(weights)), spec)
    np.testing.assert_array_equal(decoded.outputs(rows), ActingPolicy(weights, spec).outputs(rows))


def test_acting_leaves_the_weights_and_the_memory_it_was_given_as_they_were() -> None:
    spec = make_spec(network=GRU)
    policy = make_policy(spec)
    memory = np.ones((2, 4), np.float32)
    _, after = policy.step(np.ones((2, 2), np.float32), memory)
    assert (memory == 1).all()
    assert (after != 1).all()
    assert after.dtype == np.float32
