"""An export holds the whole policy, and its description suffices to act with it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Dict, MultiDiscrete
from safetensors.numpy import load_file

from dppo_redis.artefacts.exports import ARRAYS, DESCRIPTION, Export, load_export, read_export, write_export
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN, Weights
from dppo_redis.spaces.gymnasium_spaces import MaskSpace, describe_actions, describe_observations
from tests.envs.observations import Masked, Named, Parts, Screen
from tests.factories import (
    box,
    discrete,
    make_spec,
    make_weights,
    random_observations,
    scattered_model,
    source,
)

NAMED = describe_observations(Named.observation_space)
MASKED = describe_observations(Dict({"observation": Masked.observation_space, "action_mask": MaskSpace(4)}))
LSTM = NetworkConfig(hidden=(8,), memory="lstm", memory_size=6)
SPECS = {
    "vector": make_spec(observation_size=4, action=discrete(3, start=-1)),
    "box": make_spec(observation_size=4, action=box(), normalise_observations=True, activation="relu"),
    "multidiscrete": make_spec(action=describe_actions(MultiDiscrete(np.array([[2, 3], [4, 2]])))),
    "composite": make_spec(action=describe_actions(Parts.action_space)),
    "dict": make_spec(observation=NAMED, normalise_observations=True),
    "image": make_spec(observation=describe_observations(Screen.observation_space), frame_stack=2),
    "frames": make_spec(observation_size=3, frame_stack=4, normalise_observations=True),
    "lstm": make_spec(network=LSTM, action=box()),
    "gru": make_spec(observation=NAMED, network=LSTM.model_copy(update={"memory": "gru"}), frame_stack=2),
    "mask": make_spec(observation=MASKED, action=discrete(4, start=1)),
}
EVERY_KIND = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def loaded(spec: Spec) -> Weights:
    """Weights as after long training, with a normaliser where the spec has one."""
    weights = make_weights(spec, scattered_model(spec), version=7, update=6, trained_steps=1000)
    if not spec.normalise_observations:
        return weights
    rng = np.random.default_rng(5)
    moments = spec.observation.moments
    scale = {
        NORMALISER_MEAN: rng.standard_normal(moments, dtype=np.float32),
        NORMALISER_INVERSE_STD: rng.uniform(0.2, 5, moments).astype(np.float32),
    }
    return replace(weights, arrays={**weights.arrays, **scale})


def write(directory: Path, spec: Spec) -> Weights:
    weights = loaded(spec)
    write_export(directory, Export("a run", spec, weights))
    return weights


def play(policy: ActingPolicy, spec: Spec, steps: int = 5, count: int = 3) -> tuple[list[Any], list[Any]]:
    """Outputs and greedy actions for recorded observations, the memory carried on from step to step."""
    rng = np.random.default_rng(11)
    lead = (count, spec.frame_stack) if spec.frame_stack > 1 else (count,)
    memory = policy.begin(count)
    outputs, actions = [], []
    for _ in range(steps):
        seen, memory = policy.step(random_observations(rng, lead, spec), memory)
        outputs.append(seen.tolist())
        actions.append(policy.greedy(seen).tobytes())
    return outputs, actions


@EVERY_KIND
def test_an_export_acts_exactly_as_the_original(spec: Spec, tmp_path: Path) -> None:
    weights = write(tmp_path, spec)
    loaded = load_export(tmp_path)
    assert play(loaded, spec) == play(ActingPolicy(weights, spec), spec)
    assert loaded.weights.id == weights.id
    assert loaded.weights.trained_steps == 1000


@EVERY_KIND
def test_a_description_is_plain_json_that_restores_the_spec(spec: Spec, tmp_path: Path) -> None:
    write(tmp_path, spec)
    text = (tmp_path / DESCRIPTION).read_text()
    values = json.loads(text, parse_constant=pytest.fail)
    assert Spec.from_json(values["spec"]).digest() == spec.digest() == values["digest"]
    said = " ".join(values["how_to_act"])
    for field in spec.observation.fields:
        assert field.name in said or field.kind == "mask"


def test_a_policy_fits_a_run_that_differs_in_what_acting_does_not_see(tmp_path: Path) -> None:
    spec = SPECS["vector"]
    write(tmp_path, spec)
    other = replace(spec, rollout_steps=99, environment=source("other-v1", speed=2), return_discount=0.9)
    assert load_export(tmp_path, other).spec == other


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"observation_size": 5}, "observation"),
        ({"action": discrete(4)}, "action"),
        ({"hidden": (9,)}, "network"),
        ({"frame_stack": 2}, "frame_stack: 2 != 1"),
        ({"normalise_observations": True}, "normalise_observations: True != False"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_export_for_another_spec_is_refused_by_what_differs(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write(tmp_path, make_spec(observation_size=4, action=discrete(3)))
    wanted = make_spec(**{"observation_size": 4, "action": discrete(3), **change})
    with pytest.raises(ConfigurationError, match=f"is an export for another spec: {named}"):
        load_export(tmp_path, wanted)


def _damage(directory: Path, kind: str) -> None:
    values = json.loads((directory / DESCRIPTION).read_text())
    if kind == "arrays":
        content = bytearray((directory / ARRAYS).read_bytes())
        content[-1] ^= 1
        (directory / ARRAYS).write_bytes(content)
    elif kind == "no arrays":
        (directory / ARRAYS).unlink()
    elif kind == "no description":
        (directory / DESCRIPTION).unlink()
    elif kind == "cut":
        (directory / DESCRIPTION).write_text((directory / DESCRIPTION).read_text()[:100])
    else:
        name, value = {"format": ("format", 3), "digest": ("digest", "0" * 16), "value": ("update", "many")}[
            kind
        ]
        (directory / DESCRIPTION).write_text(json.dumps({**values, name: value}))


@pytest.mark.parametrize(
    "kind", ["arrays", "no arrays", "no description", "cut", "format", "digest", "value"], ids=str
)
def test_a_damaged_export_is_refused_in_one_line_that_names_it(kind: str, tmp_path: Path) -> None:
    write(tmp_path, SPECS["vector"])
    _damage(tmp_path, kind)
    with pytest.raises(ConfigurationError, match=tmp_path.name) as raised:
        load_export(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float, tmp_path: Path) -> None:
    spec = SPECS["vector"]
    weights = loaded(spec)
    weights.arrays["policy.0.bias"][0] = bad
    write_export(tmp_path, Export("a run", spec, weights))
    with pytest.raises(ConfigurationError, match=r"policy\.0\.bias holds something else than finite"):
        read_export(tmp_path)


def test_a_stranger_acts_alike_by_the_description_with_numpy_alone(tmp_path: Path) -> None:
    """Two frames of a Dict of vector, categories and flags, normalised: every step is written out."""
    space = Dict({name: x for name, x in Named.observation_space.spaces.items() if name != "camera"})
    spec = make_spec(
        observation=describe_observations(space),
        frame_stack=2,
        normalise_observations=True,
        action=discrete(3),
    )
    write(tmp_path, spec)
    policy = load_export(tmp_path)
    arrays = load_file(tmp_path / ARRAYS)
    space.seed(3)
    seen = [space.sample() for _ in range(20)]
    numbers = np.array([_numbers(one, arrays) for one in seen])
    frames = np.concatenate([numbers[:-1], numbers[1:]], axis=1)
    hidden = np.tanh(frames @ arrays["policy.0.weight"].T + arrays["policy.0.bias"])
    logits = hidden @ arrays["policy.2.weight"].T + arrays["policy.2.bias"]
    rows = np.array([spec.observation.pack(one) for one in seen])
    outputs = policy.outputs(np.stack([rows[:-1], rows[1:]], axis=1))
    np.testing.assert_allclose(outputs, logits, rtol=1e-5, atol=1e-5)
    assert policy.greedy(outputs).tolist() == logits.argmax(axis=1).tolist()
    assert len(set(logits.argmax(axis=1))) > 1


def _numbers(observation: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """arm.1 and zoom, normalised; then the flags; then arm.0 as one of three, the first for 1."""
    vectors = np.concatenate([observation["arm"][1], observation["zoom"]]).astype(np.float32)
    vectors = np.clip((vectors - arrays[NORMALISER_MEAN]) * arrays[NORMALISER_INVERSE_STD], -10, 10)
    return np.concatenate([vectors, observation["flags"], np.eye(3)[observation["arm"][0] - 1]])
