"""The checks of a decoded rollout before its use."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dppo_redis.errors import WireError
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.rollout import ARRAY_NAMES, MAX_ENVIRONMENTS, Rollout, array_forms, validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.spaces.actions import ActionSpec, CompositeSpec, MultiDiscreteSpec
from tests.factories import box, discrete, make_rollout, make_spec

RECURRENT = NetworkConfig(hidden=(8,), memory="gru", memory_size=2)
DISCRETE = make_spec(action=discrete(3), frame_stack=3, network=RECURRENT)
BOX = make_spec(action=box(), frame_stack=3, network=RECURRENT)
SPECS = pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
SEVERAL = MultiDiscreteSpec(sizes=(2, 3), starts=(0, 0), shape=(2,), dtype="int64")
FINITE = [discrete(3), ActionSpec(SEVERAL)]
BOTH = ActionSpec(CompositeSpec(None, (SEVERAL, box().space)))
FLOATS = (
    "observations",
    "log_probs",
    "rewards",
    "final_observations",
    "last_observations",
    "frames_before",
    "memory",
    "discounted_returns",
    "episode_returns",
)


def good(spec: Spec) -> Rollout:
    """Four steps of two environments; two episodes end."""
    return make_rollout(spec, terminated=[(1, 0)], truncated=[(2, 1)], invalid=[(2, 0)])


def refusal(rollout: Rollout, spec: Spec) -> WireError:
    with pytest.raises(WireError) as caught:
        validate(rollout, spec)
    return caught.value


def changed(array: Any, place: tuple[int, ...], value: float) -> Any:
    copy = array.copy()
    copy[place] = value
    return copy


@SPECS
def test_a_good_rollout_passes_before_and_after_the_wire(spec: Spec) -> None:
    validate(good(spec), spec)
    validate(decode_rollout(encode_rollout(good(spec)), spec), spec)


def test_the_table_of_arrays_gives_these_dtypes_and_shapes_in_this_order() -> None:
    """T = 4, N = 5, E = 6; observations of two numbers, three frames, a memory of two."""
    found = {name: (dtype.name, shape) for name, (shape, dtype) in array_forms(BOX, 5, 6).items()}
    expected = {
        "observations": ("float32", (4, 5, 2)),
        "actions": ("float32", (4, 5, 2)),
        "log_probs": ("float32", (4, 5)),
        "rewards": ("float32", (4, 5)),
        "terminated": ("bool", (4, 5)),
        "truncated": ("bool", (4, 5)),
        "valid": ("bool", (4, 5)),
        "final_observations": ("float32", (6, 2)),
        "last_observations": ("float32", (5, 2)),
        "frames_before": ("float32", (5, 2, 2)),
        "memory": ("float32", (5, 2)),
        "discounted_returns": ("float64", (5,)),
        "episode_returns": ("float32", (6,)),
        "episode_lengths": ("int32", (6,)),
    }
    assert list(found.items()) == list(expected.items())
    assert array_forms(DISCRETE, 5, 6)["actions"] == ((4, 5), np.dtype(np.int64))


@SPECS
def test_a_rollout_without_an_episode_end_passes(spec: Spec) -> None:
    validate(make_rollout(spec), spec)


@SPECS
@pytest.mark.parametrize("name", ARRAY_NAMES)
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "int64", "bool"])
def test_an_array_of_another_dtype_is_refused_by_name(spec: Spec, name: str, dtype: str) -> None:
    rollout = good(spec)
    array = getattr(rollout, name)
    if array.dtype == dtype:
        dtype = "float32" if dtype != "float32" else "float64"
    error = refusal(replace(rollout, **{name: array.astype(dtype)}), spec)
    assert error.reason == "dtype"
    assert name in str(error)


@SPECS
@pytest.mark.parametrize("name", ARRAY_NAMES)
@pytest.mark.parametrize(
    "reshape",
    [
        pytest.param(lambda a: a[:-1], id="one less"),
        pytest.param(lambda a: np.concatenate([a, a[:1]]), id="one more"),
        pytest.param(lambda a: a[..., None], id="one dimension more"),
        pytest.param(lambda a: a[0], id="one dimension less"),
        pytest.param(lambda a: a.reshape(-1)[:0], id="empty"),
        pytest.param(lambda a: a.reshape(-1)[:1].reshape([1] * a.ndim), id="would broadcast"),
    ],
)
def test_an_array_of_another_shape_is_refused(spec: Spec, name: str, reshape: Any) -> None:
    rollout = good(spec)
    error = refusal(replace(rollout, **{name: reshape(getattr(rollout, name))}), spec)
    assert error.reason == "shape"


def test_a_longer_rollout_is_refused_with_both_numbers() -> None:
    error = refusal(make_rollout(make_spec(rollout_steps=6)), make_spec(rollout_steps=5))
    assert error.reason == "shape"
    assert "T=6" in str(error)
    assert "T=5" in str(error)


def test_a_shorter_rollout_passes_but_for_a_memory() -> None:
    """A fleet larger than planned samples shorter ones; a memory is trained on whole ones."""
    validate(make_rollout(make_spec(rollout_steps=4)), make_spec(rollout_steps=5))
    memory = NetworkConfig(memory="gru", memory_size=3)
    short = make_rollout(make_spec(rollout_steps=4, network=memory))
    error = refusal(short, make_spec(rollout_steps=5, network=memory))
    assert error.reason == "shape"


def test_a_rollout_of_no_environment_is_refused() -> None:
    assert refusal(make_rollout(DISCRETE, count=0), DISCRETE).reason == "shape"


def test_a_rollout_of_too_many_environments_is_refused() -> None:
    spec = make_spec(rollout_steps=1, observation_size=1)
    validate(make_rollout(spec, count=MAX_ENVIRONMENTS), spec)
    assert refusal(make_rollout(spec, count=MAX_ENVIRONMENTS + 1), spec).reason == "shape"


def test_observations_of_another_size_are_refused() -> None:
    error = refusal(make_rollout(make_spec(observation_size=3)), make_spec(observation_size=2))
    assert error.reason == "shape"


@SPECS
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_a_number_that_is_not_finite_is_refused_by_the_name_of_its_field(
    spec: Spec, name: str, value: float
) -> None:
    rollout = good(spec)
    array = getattr(rollout, name)
    error = refusal(replace(rollout, **{name: changed(array, (0,) * array.ndim, value)}), spec)
    assert error.reason == "nonfinite"
    assert name in str(error)


@pytest.mark.parametrize("action", [-1, 3, 2**62])
def test_a_category_outside_the_space_is_refused(action: int) -> None:
    rollout = good(DISCRETE)
    error = refusal(replace(rollout, actions=changed(rollout.actions, (3, 1), action)), DISCRETE)
    assert error.reason == "action"


def test_categories_in_a_rollout_count_from_zero_for_every_start() -> None:
    spec = make_spec(action=discrete(3, start=-1))
    rollout = make_rollout(spec)
    validate(replace(rollout, actions=np.full_like(rollout.actions, 2)), spec)
    assert refusal(replace(rollout, actions=np.full_like(rollout.actions, -1)), spec).reason == "action"


@pytest.mark.parametrize("action", [np.nan, np.inf], ids=str)
def test_a_continuous_action_that_is_not_finite_is_refused(action: float) -> None:
    rollout = good(BOX)
    error = refusal(replace(rollout, actions=changed(rollout.actions, (0, 0, 0), action)), BOX)
    assert error.reason == "action"


def test_a_continuous_action_may_exceed_its_bounds_because_it_is_raw() -> None:
    rollout = good(BOX)
    validate(replace(rollout, actions=changed(rollout.actions, (0, 0, 0), 1000)), BOX)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_an_episode_that_ends_in_a_row_that_is_not_valid_is_refused(flag: str) -> None:
    last_sequence_numbers: dict[str, Any] = {flag: [(1, 0)], "invalid": [(1, 0)]}
    rollout = make_rollout(DISCRETE, **last_sequence_numbers)
    assert refusal(rollout, DISCRETE).reason == "flags"


def test_steps_count_valid_rows_alone() -> None:
    assert make_rollout(DISCRETE, count=3, invalid=[(0, 0), (3, 2)]).steps == 4 * 3 - 2


def test_ends_are_rows_where_either_flag_is_set() -> None:
    rollout = make_rollout(DISCRETE, terminated=[(0, 0), (1, 1)], truncated=[(1, 1), (3, 0)])
    assert np.argwhere(rollout.ends).tolist() == [[0, 0], [1, 1], [3, 0]]


@pytest.mark.parametrize("log_prob", [1e-5, 0.7, 3e38])
@pytest.mark.parametrize("action", FINITE, ids=["one", "several"])
def test_a_probability_above_one_is_refused(action: Any, log_prob: float) -> None:
    spec = make_spec(action=action)
    rollout = make_rollout(spec)
    error = refusal(replace(rollout, log_probs=changed(rollout.log_probs, (3, 1), log_prob)), spec)
    assert error.reason == "log_prob"
    assert f"{log_prob:.6g}" in str(error)


@pytest.mark.parametrize("action", FINITE, ids=["one", "several"])
def test_certain_actions_pass_with_what_rounding_adds(action: Any) -> None:
    spec = make_spec(action=action)
    rollout = make_rollout(spec)
    for log_prob in (0.0, 5e-7):
        validate(replace(rollout, log_probs=np.full_like(rollout.log_probs, log_prob)), spec)


@pytest.mark.parametrize("action", [box(), BOTH], ids=["box", "both"])
def test_the_density_of_real_numbers_may_be_above_one(action: Any) -> None:
    spec = make_spec(action=action)
    rollout = make_rollout(spec)
    validate(replace(rollout, log_probs=np.full_like(rollout.log_probs, 5.0)), spec)
