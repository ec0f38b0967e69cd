"""Actions of every kind, from the network's choice to what the environment receives."""

import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from dppo_redis.errors import WireError
from dppo_redis.policy.actor_critic import to_actions
from dppo_redis.protocol.rollout import validate
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.gymnasium_spaces import describe_actions
from dppo_redis.spaces.observations import Array
from tests.envs.observations import Parts
from tests.factories import (
    CPU,
    actions_of,
    box,
    discrete,
    inputs_of,
    make_policy,
    make_rollout,
    make_spec,
    normal,
    random_actions,
    scattered_model,
)
from tests.unit.playing import play, spec_of

PARTS = describe_actions(Parts.action_space)


def received(space: gymnasium.Space[Any], rows: Array) -> list[Any]:
    """What each of several environments gets, as gymnasium's vectors hand it on."""
    actions = describe_actions(space).to_environment(rows)
    return list(iterate(batch_space(space, len(rows)), actions))


def test_the_outputs_and_action_rows_of_each_space() -> None:
    """Logits, means, and what travels of one action."""
    found = {
        name: (spec.categories, spec.dimensions, spec.row_shape, str(spec.wire_dtype))
        for name, spec in {
            "discrete": discrete(5, start=3),
            "box": box(),
            "several": describe_actions(MultiDiscrete(np.array([[2, 3], [4, 2]]))),
            "binary": describe_actions(MultiBinary(3)),
            "one of one": describe_actions(Tuple((Discrete(5),))),
            "none": describe_actions(Box(-1, 1, (), np.float32)),
        }.items()
    }
    assert found == {
        "discrete": ((5,), 0, (), "int64"),
        "box": ((), 2, (2,), "float32"),
        "several": ((2, 3, 4, 2), 0, (4,), "int64"),
        "binary": ((2, 2, 2), 0, (3,), "int64"),
        "one of one": ((5,), 0, (1,), "int64"),
        "none": ((), 1, (1,), "float32"),
    }
    assert PARTS.categories == (2, 3, 4, 2, 2, 2, 3)
    assert PARTS.dimensions == 4
    assert PARTS.outputs == 18 + 4
    assert PARTS.wire_dtype.itemsize == 7 * 8 + 4 * 4


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_choices_and_real_numbers_become_tensors_however_few(count: int) -> None:
    """Of one row numpy takes any strides for contiguous; torch does not."""
    rows = random_actions(np.random.default_rng(0), (count,), PARTS)
    actions = to_actions(PARTS, rows, CPU)
    assert actions.categories.tolist() == rows["categories"].tolist()
    assert actions.values.tolist() == rows["values"].tolist()


def test_a_dict_of_actions_worked_by_hand() -> None:
    """Parts in the order of their names; starts are added, raw numbers are clipped."""
    rows = PARTS.join(np.array([[1, 2, 3, 0, 0, 1, 2]]), np.array([[-3, 7, 0.25, -0.75]], np.float32))
    action = received(Parts.action_space, rows)[0]
    assert action["gears"].tolist() == [[1, 3], [5, 3]]
    assert action["lights"].tolist() == [0, 1]
    assert action["turn"] == 1
    wide, narrow = action["wheels"]
    assert wide.tolist() == [-1, 7]
    assert narrow.tolist() == [[0.25, -0.5]]
    assert Parts.action_space.contains(action)


def test_no_order_of_keys_can_swap_two_actions() -> None:
    parts = {"b": Discrete(2), "a": Discrete(3)}
    forward, backward = Dict(list(parts.items())), Dict(list(reversed(parts.items())))
    rows = np.array([[2, 1]])
    assert describe_actions(forward) == describe_actions(backward)
    assert received(forward, rows)[0] == received(backward, rows)[0] == {"a": 2, "b": 1}


@pytest.mark.parametrize("env", ["Parts", "Buttons", "Everything"])
def test_environments_get_actions_of_their_space_for_two_hundred_steps(env: str) -> None:
    """They raise when they get another one."""
    spec = spec_of(env, rollout_steps=200)
    (rollout,) = play(spec, AutoresetMode.DISABLED)
    chosen, _ = spec.action.split(rollout.actions)
    for index, n in enumerate(spec.action.categories):
        assert set(chosen[..., index].flatten().tolist()) == set(range(n))


def test_a_joint_log_probability_and_entropy_are_sums_over_all_parts() -> None:
    spec = make_spec(action=PARTS)
    model = scattered_model(spec)
    rollout = make_rollout(spec)
    observations, rows = rollout.observations.reshape(8, -1), rollout.actions.reshape(8)
    with torch.no_grad():
        found = model.evaluate(inputs_of(spec, observations), actions_of(spec, rows))
        outputs = model.policy(torch.from_numpy(observations))
    log_probs, entropy = torch.zeros(8), torch.zeros(8)
    place = 0
    for index, n in enumerate(PARTS.categories):
        one = torch.distributions.Categorical(logits=outputs[:, place : place + n])
        log_probs += one.log_prob(torch.from_numpy(rows["categories"][:, index].copy()))  # type: ignore[no-untyped-call]
        entropy += one.entropy()  # type: ignore[no-untyped-call]
        place += n
    for index in range(PARTS.dimensions):
        normal_one = torch.distributions.Normal(outputs[:, place + index], model.log_std[index].exp())
        log_probs += normal_one.log_prob(torch.from_numpy(rows["values"][:, index].copy())).detach()  # type: ignore[no-untyped-call]
        entropy += normal_one.entropy().detach()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found.log_probs, log_probs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.entropy, entropy, rtol=1e-4, atol=1e-4)
    policy = make_policy(spec, model)
    acted = policy.log_probs(policy.outputs(observations)[None], rows[None])[0]
    np.testing.assert_allclose(acted, log_probs.numpy(), rtol=1e-4, atol=1e-4)


def test_each_category_of_several_is_drawn_as_often_as_its_probability_says() -> None:
    """Chi-square of 20,000 draws; above 16.3 with three degrees of freedom in one of 1,000 seeds."""
    spec = make_spec(action=describe_actions(MultiDiscrete([4, 2])))
    probabilities = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.7, 0.3])
    policy = make_policy(spec)
    outputs = np.tile(np.log(np.concatenate(probabilities)).astype(np.float32), (20_000, 1))
    drawn = policy.sample(outputs, policy.noise(np.random.default_rng(0), 1, 20_000)[0])
    for index, shares in enumerate(probabilities):
        expected = 20_000 * shares
        counts = np.bincount(drawn[:, index], minlength=len(shares))
        assert (np.square(counts - expected) / expected).sum() < 16.3
    joint = np.mean((drawn[:, 0] == 3) & (drawn[:, 1] == 0))
    assert joint == pytest.approx(0.4 * 0.7, abs=0.015)


def test_greedy_takes_the_best_of_each_category_and_the_means() -> None:
    spec = make_spec(action=describe_actions(Tuple((MultiDiscrete([2, 3]), Box(-1, 1, (2,))))))
    row = make_policy(spec).greedy(np.array([[0, 1, 5, 2, 3, -0.5, 7]], np.float32))
    assert row["categories"].tolist() == [[1, 0]]
    assert row["values"].tolist() == [[-0.5, 7]]


@pytest.mark.parametrize(
    ("field", "place", "value"),
    [
        ("categories", (0, 0, 0), 2),
        ("categories", (3, 1, 6), 3),
        ("categories", (3, 1, 0), -1),
        ("values", (1, 0, 3), np.nan),
        ("values", (1, 0, 0), np.inf),
    ],
)
def test_an_action_of_several_fields_outside_its_space_is_refused(
    field: str, place: tuple[int, ...], value: float
) -> None:
    spec = make_spec(action=PARTS)
    rollout = make_rollout(spec)
    validate(rollout, spec)
    rollout.actions[field][place] = value
    with pytest.raises(WireError) as caught:
        validate(rollout, spec)
    assert caught.value.reason == "action"


def several(shape: tuple[int, ...], seed: int) -> MultiDiscrete:
    rng = np.random.default_rng(seed)
    sizes: Array = rng.integers(1, 5, shape)
    starts: Array = rng.integers(-3, 4, shape)
    return MultiDiscrete(sizes, start=starts)


def real(shape: tuple[int, ...], dtype: Any, bounds: tuple[float, float]) -> Box:
    return Box(*bounds, shape, np.dtype(dtype).type)


parts = st.one_of(
    st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(several, st.lists(st.integers(1, 2), min_size=1, max_size=3).map(tuple), st.integers(0, 99)),
    st.builds(MultiBinary, st.one_of(st.integers(1, 3), st.just((2, 2)))),
    st.builds(
        real,
        st.lists(st.integers(1, 2), max_size=3).map(tuple),
        st.sampled_from(["float16", "float32", "float64"]),
        st.sampled_from([(-0.1, 0.3), (-math.inf, math.inf), (0.0, math.inf), (-math.inf, 0.7), (2.0, 2.0)]),
    ),
)
spaces = st.recursive(
    parts,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
        st.dictionaries(st.text("abc", max_size=2), inner, min_size=1, max_size=3).map(Dict),
    ),
    max_leaves=5,
)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array:UserWarning")
@settings(max_examples=60)
@given(space=spaces, seed=st.integers(0, 2**16))
def test_the_environment_gets_an_action_of_its_space_for_any_outputs(
    space: gymnasium.Space[Any], seed: int
) -> None:
    action = describe_actions(space)
    rows = random_actions(np.random.default_rng(seed), (3,), action)
    for one in received(space, rows):
        assert space.contains(one), one


@settings(max_examples=60)
@given(space=spaces, seed=st.integers(0, 2**16))
def test_a_rollout_of_any_actions_crosses_the_wire(space: gymnasium.Space[Any], seed: int) -> None:
    spec = make_spec(action=describe_actions(space), rollout_steps=2)
    rollout = make_rollout(spec, seed=seed)
    decoded = decode_rollout(encode_rollout(rollout), spec)
    validate(decoded, spec)
    assert decoded.actions.dtype == rollout.actions.dtype
    np.testing.assert_array_equal(decoded.actions, rollout.actions)


@settings(max_examples=60)
@given(space=spaces)
def test_a_description_of_any_space_survives_json(space: gymnasium.Space[Any]) -> None:
    spec = describe_actions(space)
    assert ActionSpec.from_json(json.loads(json.dumps(spec.to_json(), allow_nan=False))) == spec


@settings(max_examples=40)
@given(space=spaces, seed=st.integers(0, 2**16))
def test_actor_and_learner_agree_about_any_actions(space: gymnasium.Space[Any], seed: int) -> None:
    """Known failure KF-PPO-08."""
    spec = make_spec(action=describe_actions(space), hidden=(4,))
    model = scattered_model(spec, seed)
    policy = make_policy(spec, model)
    observations = normal(np.random.default_rng(seed), 16, 2)
    outputs = policy.outputs(observations)
    rows = policy.sample(outputs, policy.noise(np.random.default_rng(seed), 1, 16)[0])
    with torch.no_grad():
        learned = model.evaluate(inputs_of(spec, observations), actions_of(spec, rows)).log_probs.numpy()
    assert np.abs(np.exp(learned - policy.log_probs(outputs, rows)) - 1).max() < 1e-4


def test_two_specs_that_differ_in_the_order_of_parts_differ() -> None:
    one = describe_actions(Tuple((Discrete(2), Discrete(3))))
    assert describe_actions(Tuple((Discrete(3), Discrete(2)))) != one
