"""Observations of every kind, from the environment to the first gradient step."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from dppo_redis.environments.make import make_vector
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.spaces.features import features, images
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from dppo_redis.spaces.observations import ObservationSpec
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate
from tests.envs.observations import Named
from tests.factories import (
    CPU,
    actions_of,
    copied,
    inputs_of,
    make_collector,
    make_model,
    make_policy,
    make_ppo,
    make_rollout,
    make_spec,
    make_weights,
)
from tests.unit.playing import GRU, LSTM, MODES, SMALL, lively_model, play, spec_of
from workers.envs import Environments

OBSERVATIONS = [
    *("Category", "Categories", "Flags", "Grid", "Grey", "Screen", "Image"),
    *("Matrix", "Number", "Memory", "Named", "Pair", "ReusingNamed"),
]
ACTIONS = ["Parts", "Buttons", "ManyDiscrete", "OpenBounds", "Masked", "MaskedPair", "Everything"]
CUSTOM = SMALL.model_copy(update={"custom": "tests.networks:Noisy"})
NETWORKS: dict[str, tuple[NetworkConfig, int]] = {
    "mlp": (SMALL, 1),
    "relu of 4 frames": (SMALL.model_copy(update={"activation": "relu"}), 4),
    "lstm": (LSTM, 1),
    "gru of 2 frames": (GRU, 2),
    "custom of 2 frames": (CUSTOM, 2),
}


def cases() -> Iterator[Any]:
    """Every space with every network; the modes of automatic reset take turns."""
    for i, env in enumerate(OBSERVATIONS + ACTIONS):
        for j, name in enumerate(NETWORKS):
            kwargs = {} if env in ("ManyDiscrete", "OpenBounds", "Image") else {"length": 3}
            mode = MODES[(i + j) % len(MODES)]
            yield pytest.param(env, name, mode, kwargs, id=f"{env}-{name}-{mode.name}")


def assert_equal(received: Rollout, sent: Rollout) -> None:
    for name in ARRAY_NAMES:
        ours, theirs = getattr(received, name), getattr(sent, name)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def assert_trains(spec: Spec, rollouts: list[Rollout]) -> None:
    """Fresh rollouts of `lively_model` have the ratio 1, and an update changes finite weights."""
    arrived = [decode_rollout(encode_rollout(rollout), spec) for rollout in rollouts]
    for received, sent in zip(arrived, rollouts, strict=True):
        assert_equal(received, sent)
        validate(received, spec)
    model = lively_model(spec)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ppo = make_ppo(minibatch_size=2 * spec.rollout_steps)
    report = PpoUpdate(model, spec, ppo, 1, 0, CPU).update(stack(arrived), 0.0)
    # Known failure KF-PPO-08.
    assert report.ratio_error is not None
    assert report.ratio_error < 1e-4
    assert report.skipped_steps == 0
    after = model.state_dict()
    assert all(bool(x.isfinite().all()) for x in after.values())
    changed = {name for name, x in after.items() if not torch.equal(x, before[name])}
    parameters = {name for name, _ in model.named_parameters()}
    assert changed <= parameters, "a batch statistic has moved"
    assert any(name.startswith(("policy", "custom")) for name in changed)


@pytest.mark.parametrize(("env", "network", "mode", "kwargs"), list(cases()))
def test_every_space_trains_with_every_network(
    env: str, network: str, mode: AutoresetMode, kwargs: dict[str, Any]
) -> None:
    layout, frames = NETWORKS[network]
    spec = spec_of(env, rollout_steps=5, network=layout, frame_stack=frames)
    both = [kwargs, {**kwargs, "length": 4, "cut": True} if kwargs else {}]
    assert_trains(spec, play(spec, mode, kwargs=both, rollouts=2))


def test_everything_at_once_trains_in_processes_of_its_own() -> None:
    spec = spec_of("Everything", network=LSTM, frame_stack=2)
    vector = make_vector(spec.environment, 2, "async", masked=True)
    collector = make_collector(Environments(vector, [0, 1]), spec)
    try:
        policy = make_policy(spec, lively_model(spec))
        assert_trains(spec, [copied(collector.collect(policy)) for _ in range(2)])
    finally:
        collector.close()


# Known failure KF-PPO-04.
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("env", ["Named", "Everything"])
def test_every_quantity_of_a_row_is_one_number(env: str, network: str) -> None:
    layout, frames = NETWORKS[network]
    spec = spec_of(env, network=layout.model_copy(update={"memory": "none"}), frame_stack=frames)
    rollout = make_rollout(spec)
    rows = (rollout.rewards.size, frames) if frames > 1 else (rollout.rewards.size,)
    inputs = inputs_of(spec, np.resize(rollout.observations, rows))
    actions = actions_of(spec, np.resize(rollout.actions, rollout.rewards.size))
    found = make_model(spec).evaluate(inputs, actions)
    assert {name: tuple(x.shape) for name, x in vars(found).items()} == dict.fromkeys(vars(found), (14,))


def test_the_wire_dtype_and_size_of_each_kind_of_space() -> None:
    """Bytes stay bytes, other numbers are float32, a category is its index from 0."""
    by_name = {field.name: field for field in describe_observations(Named.observation_space).fields}
    assert {name: (field.kind, str(field.wire_dtype), field.shape) for name, field in by_name.items()} == {
        "arm.0": ("categories", "int32", (1,)),
        "arm.1": ("vector", "float32", (3,)),
        "camera": ("image", "uint8", (8, 9, 3)),
        "flags": ("binary", "uint8", (2,)),
        "zoom": ("vector", "float32", (2,)),
    }
    for space, dtype in ((Box(0, 255, (16,), np.uint8), "uint8"), (Box(-1, 1, (2,), np.float64), "float32")):
        assert str(describe_observations(space).row_dtype) == dtype


def test_a_payload_holds_one_byte_per_pixel_and_four_per_float() -> None:
    """Known failure KF-PPO-07: payloads four or eight times too large."""
    spec = spec_of("Named", rollout_steps=50)
    (rollout,) = play(spec, kwargs=[{"length": 100}])
    assert rollout.observations["camera"].dtype == np.uint8
    row = 8 * 9 * 3 + 4 * (2 + 3 + 1) + 2
    assert spec.observation.row_bytes == row
    rest = 8 + 4 + 4 + 3  # action, log-probability, reward, flags
    assert len(encode_rollout(rollout)) == pytest.approx(50 * (row + rest) + row, abs=500)


@pytest.mark.parametrize("as_given", [dict, OrderedDict, list])
def test_no_order_of_keys_can_swap_two_features(as_given: Any) -> None:
    parts = {"b": Box(-1, 1, (1,)), "a": Box(-1, 1, (1,)), "c": Discrete(2)}
    forward, backward = (Dict(as_given(items)) for items in (parts.items(), reversed(parts.items())))
    spec = describe_observations(forward)
    assert describe_observations(backward) == spec
    values = {"c": 1, "a": np.array([10.0]), "b": np.array([20.0])}
    rows = [spec.pack(dict(items)) for items in (values.items(), reversed(values.items()))]
    assert rows[0] == rows[1]
    assert features(spec, rows[0]).tolist() == [10, 20, 0, 1]


def test_a_tuple_of_more_than_ten_parts_keeps_their_order() -> None:
    """Part 10 comes after part 9, not after part 1."""
    space = Tuple([Box(-100, 100, (1,)) for _ in range(12)])
    spec = describe_observations(space)
    row = spec.pack(tuple(np.array([i]) for i in range(12)))
    assert features(spec, row).tolist() == list(range(12))


def test_categories_are_one_hot_wherever_they_start() -> None:
    discrete = describe_observations(Discrete(3, start=-1))
    rows = discrete.pack(np.array([-1, 0, 1]), (3,))
    assert rows.tolist() == [[0], [1], [2]]
    assert features(discrete, rows).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    several = describe_observations(MultiDiscrete(np.array([[2, 3]]), start=np.array([[5, -2]])))
    rows = several.pack(np.array([[[5, 0]], [[6, -2]]]), (2,))
    assert features(several, rows).tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]


def test_flags_are_zeros_and_ones() -> None:
    spec = describe_observations(MultiBinary([2, 2]))
    assert features(spec, spec.pack(np.array([[0, 1], [1, 1]], np.int8))).tolist() == [0, 1, 1, 1]


def test_features_of_stacked_frames_stand_one_frame_after_the_other() -> None:
    spec = describe_observations(Dict({"a": Box(-9, 9, (1,)), "b": Discrete(2)}))
    frames = spec.pack({"a": np.array([[[1.0], [2.0]]]), "b": np.array([[0, 1]])}, (1, 2))
    assert features(spec, frames, 2).tolist() == [[1, 1, 0, 2, 0, 1]]


def test_images_of_any_axis_order_become_channels_first() -> None:
    picture = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    last = describe_observations(Box(0, 255, (3, 4, 2), np.uint8))
    first = describe_observations(Box(0, 255, (2, 3, 4), np.uint8))
    grey = describe_observations(Box(0, 255, (3, 4), np.uint8))
    (of_last,) = images(last, np.moveaxis(picture, 0, -1))
    (of_first,) = images(first, picture)
    (of_grey,) = images(grey, picture[0])
    np.testing.assert_array_equal(of_last, picture)
    np.testing.assert_array_equal(of_first, picture)
    np.testing.assert_array_equal(of_grey, picture[:1])
    assert last.fields[0].image_shape == first.fields[0].image_shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 8, 111), (111, 8, 8)),
        ((111, 8, 8), (111, 8, 8)),
        ((5, 5, 8), (8, 5, 5)),
        ((3, 84, 84), (3, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 3, 3), (3, 3, 3)),
    ],
    ids=str,
)
def test_the_channels_of_a_square_image_are_the_axis_that_differs_in_size(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """A chess board has 111 of them, for one."""
    assert describe_observations(Box(0, 1, shape, np.uint8)).fields[0].image_shape == expected


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4)], ids=str)
def test_frames_of_images_become_further_channels_oldest_first(shape: tuple[int, ...]) -> None:
    spec = describe_observations(Box(0, 255, shape, np.uint8))
    frames = np.arange(2 * 3 * np.prod(shape)).astype(np.uint8).reshape(2, 3, *shape)
    (stacked,) = images(spec, frames, 3)
    assert stacked.shape == (2, 3 * (shape[0] if len(shape) == 3 else 1), 3, 4)
    np.testing.assert_array_equal(stacked.reshape(frames.shape), frames)


def test_the_network_sees_the_same_image_with_channels_first_or_last() -> None:
    first, last = (
        make_spec(observation=describe_observations(Box(0, 255, shape, np.uint8)))
        for shape in ((3, 40, 44), (40, 44, 3))
    )
    pictures = np.random.default_rng(0).integers(0, 256, (5, 3, 40, 44)).astype(np.uint8)
    model = lively_model(first)
    other = make_model(last)
    other.load_state_dict(model.state_dict())
    by_first = make_policy(first, model).outputs(pictures)
    by_last = make_policy(last, other).outputs(np.moveaxis(pictures, 1, -1))
    np.testing.assert_allclose(by_first, by_last, atol=1e-5)
    assert np.abs(by_first[0] - by_first[1]).max() > 1e-3


@pytest.mark.parametrize("high", [255, 1])
@pytest.mark.parametrize("shape", [(8, 9, 3), (3, 40, 44)], ids=["small", "nature"])
def test_bytes_are_scaled_exactly_once(shape: tuple[int, ...], high: int) -> None:
    """Known failure KF-PPO-07: the brightest byte enters the first convolution as 1."""
    spec = make_spec(observation=describe_observations(Box(0, high, shape, np.uint8)))
    model = make_model(spec)
    entered: list[torch.Tensor] = []
    assert model.trunk is not None
    first = next(module for module in model.modules() if isinstance(module, torch.nn.Conv2d))
    first.register_forward_hook(lambda _module, inputs, _output: entered.append(inputs[0]))
    model.outputs(inputs_of(spec, np.full((2, *shape), high, np.uint8)))
    model.values(inputs_of(spec, np.zeros((2, *shape), np.uint8)))
    assert [float(x.max()) for x in entered] == pytest.approx([1, 0])
    assert {x.dtype for x in entered} == {torch.float32}


@pytest.mark.parametrize("frames", [1, 3])
def test_the_normaliser_knows_the_vectors_and_nothing_else(frames: int) -> None:
    spec = spec_of("Named", normalise_observations=True, frame_stack=frames)
    model = lively_model(spec)
    updates = PpoUpdate(model, spec, make_ppo(normalise_observations=True), 1, 0, CPU)
    assert updates.observation_moments.mean.shape == (5,)
    seen = []
    for seed in range(2):
        rollout = make_rollout(spec, seed=seed, invalid=[(3, 0)])
        updates.update(stack([rollout]), 0.0)
        rows = rollout.observations[rollout.valid]
        seen.append(np.concatenate([rows["arm.1"], rows["zoom"]], axis=-1))
    expected = np.concatenate(seen).astype(np.float64)
    assert updates.observation_moments.mean == pytest.approx(expected.mean(0))
    assert updates.observation_moments.inverse_std == pytest.approx(1 / expected.std(0), rel=1e-5)


def test_normalising_leaves_flags_and_categories_as_they_are() -> None:
    spec = describe_observations(Dict({"a": Discrete(2), "b": Box(-9, 9, (2,)), "c": MultiBinary(1)}))
    row = spec.pack({"a": 1, "b": np.array([3.0, 5.0]), "c": np.array([1])})
    moments = np.array([1, 1], np.float32), np.array([0.5, 2], np.float32)
    assert features(spec, row, 1, moments).tolist() == [1, 8, 1, 0, 1]


@pytest.mark.parametrize("env", ["Named", "Matrix", "Category", "Everything"])
@pytest.mark.parametrize("network", ["mlp", "relu of 4 frames", "gru of 2 frames"])
def test_actor_and_learner_agree_after_the_normaliser_has_moved(env: str, network: str) -> None:
    layout, frames = NETWORKS[network]
    spec = spec_of(env, network=layout, frame_stack=frames, normalise_observations=True)
    ppo = make_ppo(normalise_observations=True, minibatch_size=7)
    updates = PpoUpdate(lively_model(spec), spec, ppo, 1, 0, CPU)
    for _ in range(3):
        policy = ActingPolicy(make_weights(spec, arrays=updates.acting_arrays()), spec)
        report = updates.update(stack(play(spec, policy=policy)), 0.0)
        assert report.ratio_error is not None
        assert report.ratio_error < 1e-4


def test_an_image_beside_a_vector_at_an_unaligned_offset_trains() -> None:
    """A row of 7 x 7 x 3 bytes and two floats: the floats stand at no multiple of four."""
    space = Dict({"a": Box(0, 255, (7, 7, 3), np.uint8), "b": Box(-1, 1, (2,), np.float32)})
    spec = make_spec(observation=describe_observations(space))
    rollout = make_rollout(spec, policy=make_policy(spec, lively_model(spec)))
    assert_trains(spec, [rollout])


parts = st.one_of(
    st.builds(
        lambda shape, dtype: Box(-5, 5, shape, np.dtype(dtype).type),
        st.lists(st.integers(1, 3), max_size=3).map(tuple),
        st.sampled_from(["float32", "float64", "float16", "int32", "int64", "int8"]),
    ),
    st.builds(
        lambda shape, high: Box(0, high, shape, np.uint8),
        st.lists(st.integers(1, 5), max_size=4).map(tuple),
        st.sampled_from([1, 200, 255]),
    ),
    st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(
        lambda sizes: MultiDiscrete(sizes, start=[s - 3 for s in sizes]),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
    ),
    st.builds(MultiBinary, st.integers(1, 3)),
)
spaces = st.recursive(
    parts,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
        st.dictionaries(st.text("abc", max_size=2), inner, min_size=1, max_size=3).map(Dict),
    ),
    max_leaves=5,
)


def leaves(space: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The plain parts of a space with their values, in the order of the fields."""
    if isinstance(space, Dict):
        for key in sorted(space.spaces):
            yield from leaves(space[key], value[key])
    elif isinstance(space, Tuple):
        for part, one in zip(space, value, strict=True):
            yield from leaves(part, one)
    else:
        yield space, value


@settings(max_examples=50)
@given(space=spaces, seed=st.integers(0, 2**16))
def test_any_space_is_packed_part_by_part(space: gymnasium.Space[Any], seed: int) -> None:
    spec = describe_observations(space)
    space.seed(seed)
    value = space.sample()
    row = spec.pack(value)
    assert (row.dtype, row.shape) == (spec.row_dtype, spec.row_shape)
    for field, (part, one) in zip(spec.fields, leaves(space, value), strict=True):
        start = part.start if isinstance(part, Discrete | MultiDiscrete) else 0
        expected = np.asarray(one - np.asarray(start)).reshape(field.shape)
        np.testing.assert_array_equal(spec.part(row, field), expected.astype(field.wire_dtype))
    assert spec.nonfinite(row) is None
    assert spec.outside(row) is None


@settings(max_examples=50)
@given(space=spaces, frames=st.integers(1, 3), count=st.integers(1, 2), seed=st.integers(0, 2**16))
def test_a_rollout_of_any_space_crosses_the_wire(
    space: gymnasium.Space[Any], frames: int, count: int, seed: int
) -> None:
    spec = make_spec(observation=describe_observations(space), frame_stack=frames, rollout_steps=2)
    rollout = make_rollout(spec, count=count, seed=seed, terminated=[(0, 0)])
    received = decode_rollout(encode_rollout(rollout), spec)
    assert_equal(received, rollout)
    validate(received, spec)


@settings(max_examples=50)
@given(space=spaces)
def test_a_description_of_any_space_survives_json(space: gymnasium.Space[Any]) -> None:
    spec = make_spec(observation=describe_observations(space))
    again = Spec.from_json(spec.to_json())
    assert again == spec
    assert again.digest() == spec.digest()
    assert again.observation.row_dtype == spec.observation.row_dtype


def test_a_vector_is_described_as_itself() -> None:
    assert describe_observations(Box(-1, 1, (2, 3))) == ObservationSpec.vector(6)


@pytest.mark.parametrize("space", [Discrete(2**40), MultiDiscrete([2**17, 2])], ids=str)
def test_categories_without_number_are_refused_by_name(space: gymnasium.Space[Any]) -> None:
    for describe in (describe_observations, describe_actions):
        with pytest.raises(ConfigurationError, match=r"at most 65,536") as caught:
            describe(space)
        assert str(space) in str(caught.value)
