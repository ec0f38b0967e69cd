"""Which spaces are supported, and what an action is on the wire and in the environment."""

import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces.actions import ActionSpec, BoxSpec, DiscreteSpec
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from dppo_redis.spaces.observations import ObservationSpec
from tests.factories import box, discrete


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
def test_a_vector_observation_of_any_number_type_is_described(dtype: str) -> None:
    space = Box(0, 100, (5,), np.dtype(dtype).type)
    assert describe_observations(space) == ObservationSpec.vector(5, dtype)


def test_observation_bounds_may_be_infinite_or_the_largest_float() -> None:
    high = np.array([np.inf, np.finfo(np.float32).max], np.float32)
    assert describe_observations(Box(-high, high)).size == 2


@pytest.mark.parametrize(
    "space",
    [
        Box(-1, 1, (0,), np.float32),
        Text(3),
        Graph(Discrete(2), None),
        Sequence(Discrete(2)),
        OneOf([Discrete(2), Discrete(3)]),
        Dict({"a": Discrete(2), "b": Text(3)}),
        Tuple((Discrete(2), Tuple((Text(3),)))),
    ],
    ids=lambda space: type(space).__name__ + str(space.shape or ""),
)
def test_another_observation_space_is_refused_by_its_name(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        describe_observations(space)
    part = {"Dict": Text(3), "Tuple": Text(3)}.get(type(space).__name__, space)
    assert f"observation space {part}" in str(caught.value)
    assert "Box of any shape, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "part"),
    [(Dict({"a": Discrete(2), "b": Text(3)}), "b"), (Tuple((Discrete(2), Tuple((Text(3),)))), "1.0")],
    ids=["dict", "tuple"],
)
def test_a_part_that_is_refused_is_named(space: gymnasium.Space[Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"\(part {part}\).*FilterObservation"):
        describe_observations(space)


@pytest.mark.parametrize("space", [Dict({}), Tuple(())], ids=str)
def test_a_space_without_anything_to_observe_is_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError, match="holds nothing to observe"):
        describe_observations(space)


def test_keys_of_two_kinds_have_an_order_too() -> None:
    """Python itself has none for them; numbers come first, by size."""
    parts: dict[Any, gymnasium.Space[Any]] = {"a": Discrete(2), 10: Discrete(3), 9: Discrete(4)}
    for keys in (list(parts), list(reversed(parts))):
        space = Dict({key: parts[key] for key in keys})
        spec = describe_observations(space)
        assert [field.path for field in spec.fields] == [(9,), (10,), ("a",)]
        assert ObservationSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
        actions = describe_actions(space)
        assert actions.categories == (4, 3, 2)
        assert ActionSpec.from_json(json.loads(json.dumps(actions.to_json()))) == actions


@pytest.mark.parametrize("key", [(0, 1), np.int64(1), None], ids=repr)
def test_keys_that_json_does_not_keep_are_refused_by_name(key: Any) -> None:
    space = Dict({key: Discrete(2)})
    for describe in (describe_observations, describe_actions):
        with pytest.raises(
            ConfigurationError, match=r"has the key .*: keys of a Dict are texts or whole numbers"
        ):
            describe(space)


def test_two_parts_of_one_name_are_refused() -> None:
    space = Dict({"a.b": Discrete(2), "a": Dict({"b": Discrete(2)})})
    with pytest.raises(ConfigurationError, match=r"two parts of one name: \['a.b', 'a.b'\]"):
        describe_observations(space)


@pytest.mark.parametrize(
    "space",
    [Text(3), Sequence(Discrete(2)), Dict({"a": Discrete(2), "b": Text(3)}), Tuple((Text(3),))],
    ids=str,
)
def test_another_action_space_is_refused_by_its_name(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        describe_actions(space)
    part = {"Dict": Text(3), "Tuple": Text(3)}.get(type(space).__name__, space)
    assert f"action space {part}" in str(caught.value)
    assert "Discrete, MultiDiscrete, MultiBinary, Box of floats, and Dict and Tuple" in str(caught.value)


@pytest.mark.parametrize("space", [Dict({}), Tuple(())], ids=str)
def test_a_space_without_anything_to_choose_is_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError, match="has nothing to choose from"):
        describe_actions(space)


@pytest.mark.parametrize(
    "space", [Box(0, 5, (2,), np.int32), Box(-1, 1, (0,), np.float32)], ids=["whole numbers", "no dimension"]
)
def test_a_box_of_actions_that_no_gaussian_fits_is_refused(space: Box) -> None:
    with pytest.raises(ConfigurationError, match="action space"):
        describe_actions(space)


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)], ids=str)
def test_bounds_that_no_action_can_meet_are_refused(bounds: tuple[float, float]) -> None:
    space = Box(-1, 1, (1,), np.float32)
    space.low[0], space.high[0] = bounds
    with pytest.raises(ConfigurationError, match="no action satisfies"):
        describe_actions(space)


def test_a_discrete_space_is_described_with_its_start() -> None:
    assert describe_actions(Discrete(3, start=-1)) == ActionSpec(DiscreteSpec(n=3, start=-1))


def test_a_box_of_actions_is_described_with_its_shape_bounds_and_dtype() -> None:
    low = np.array([[-np.inf, 0], [-1, 2]], np.float64)
    high = np.array([[np.inf, np.inf], [1, 2]], np.float64)
    assert describe_actions(Box(low, high, dtype=np.float64)) == ActionSpec(
        BoxSpec(shape=(2, 2), low=(-math.inf, 0, -1, 2), high=(math.inf, math.inf, 1, 2), dtype="float64")
    )


def test_categories_become_the_numbers_of_the_environment() -> None:
    assert discrete(3, start=-1).to_environment(np.array([0, 1, 2])).tolist() == [-1, 0, 1]
    assert discrete(3).to_environment(np.array([0, 1, 2])).tolist() == [0, 1, 2]


def test_only_categories_of_the_space_are_contained() -> None:
    spec = discrete(3, start=-1)
    assert spec.contains(np.array([[0, 2]]))
    assert not spec.contains(np.array([[0, 3]]))
    assert not spec.contains(np.array([[-1, 0]]))


def test_raw_actions_are_clipped_for_the_environment_and_the_raw_ones_stay() -> None:
    raw = np.array([[3, -3, 3, 3], [-3, 3, 0.5, 3]], np.float32)
    spec = box((-1, 1), (0, math.inf), (-math.inf, math.inf), (2, 2))
    assert spec.to_environment(raw).tolist() == [[1, 0, 3, 2], [-1, 3, 0.5, 2]]
    assert raw[0].tolist() == [3, -3, 3, 3]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
def test_the_environment_gets_actions_that_its_space_contains(shape: tuple[int, ...], dtype: str) -> None:
    """The bounds are no round numbers in any of these types."""
    space = Box(-0.1, 0.3, shape, np.dtype(dtype).type)
    spec = describe_actions(space)
    raw = np.random.default_rng(0).normal(size=(50, *spec.row_shape)).astype(np.float32)
    actions = spec.to_environment(raw)
    assert actions.shape == (50, *shape)
    assert all(space.contains(np.asarray(action)) for action in actions)


def test_raw_actions_need_only_be_finite() -> None:
    assert box().contains(np.array([[1000, -1000]], np.float32))
    assert not box().contains(np.array([[np.nan, 0]], np.float32))
    assert not box().contains(np.array([[np.inf, 0]], np.float32))


def test_the_policy_head_has_one_output_for_each_category_or_dimension() -> None:
    assert (discrete(5).outputs, discrete(5).row_shape, str(discrete(5).wire_dtype)) == (5, (), "int64")
    assert (box().outputs, box().row_shape, str(box().wire_dtype)) == (2, (2,), "float32")


bounds = st.tuples(st.floats(max_value=0, allow_nan=False), st.floats(min_value=0, allow_nan=False)).filter(
    lambda pair: pair[0] != math.inf and pair[1] != -math.inf
)
box_specs = st.lists(bounds, min_size=1, max_size=4).map(lambda pairs: box(*pairs, dtype="float64"))
discrete_specs = st.builds(discrete, n=st.integers(1, 1000), start=st.integers(-1000, 1000))


@given(st.one_of(box_specs, discrete_specs))
def test_action_spaces_survive_json_with_infinite_bounds(spec: ActionSpec) -> None:
    text = json.dumps(spec.to_json(), allow_nan=False)
    assert ActionSpec.from_json(json.loads(text)) == spec
