"""The spec, on which actors and learner must agree."""

import hashlib
import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from dppo_redis.errors import ConfigurationError, DamagedSpecError
from dppo_redis.protocol.config import EnvValue, NetworkConfig
from dppo_redis.protocol.spec import WIRE_SCHEMA, JoinSettings, RunDescription, Spec, describe_run
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from dppo_redis.spaces.observations import ObservationSpec
from tests.factories import box, discrete, make_config, make_description, make_spec, source

OBSERVATIONS = [
    Discrete(2),
    Discrete(2, start=1),
    MultiDiscrete([2, 2]),
    MultiBinary(2),
    Box(0, 255, (8, 8), np.uint8),
    Box(0, 1, (8, 8), np.uint8),
    Box(0, 255, (8, 8, 1), np.uint8),
    Dict({"a": Discrete(2), "b": Box(-1, 1, (2,))}),
    Dict({"b": Discrete(2), "a": Box(-1, 1, (2,))}),
    Tuple([Discrete(2), Box(-1, 1, (2,))]),
]
ACTIONS = [
    MultiDiscrete([2, 3]),
    MultiDiscrete([3, 2]),
    MultiDiscrete([2, 3], start=[1, 0]),
    MultiDiscrete(np.array([[2, 3]])),
    MultiBinary(2),
    Dict({"a": Discrete(2), "b": Box(-1, np.inf, (2,), np.float32)}),
    Dict({"b": Discrete(2), "a": Box(-1, np.inf, (2,), np.float32)}),
    Tuple([Discrete(2), Tuple([Discrete(3), Box(-1, 1, (2,))])]),
    Tuple([Tuple([Discrete(2), Discrete(3)]), Box(-1, 1, (2,))]),
]
KWARGS: dict[str, EnvValue] = {"gravity": 9.8, "wind": True, "mode": "hard", "lanes": 3}
SPEC = make_spec(env_kwargs=KWARGS, wrappers=("A", "B"))
OTHERS: dict[str, list[Any]] = {
    "environment": [
        replace(SPEC.environment, env_id="Other-v0"),
        *(replace(SPEC.environment, env_kwargs=x) for x in ({}, {**KWARGS, "wind": False})),
        replace(SPEC.environment, env_kwargs={**KWARGS, "gravity": 9.81}),
        *(replace(SPEC.environment, wrappers=x) for x in ((), ("B", "A"), ("A", "B", "B"), ("A, B",))),
    ],
    "observation": [
        ObservationSpec.vector(3),
        ObservationSpec.vector(2, "float64"),
        *(describe_observations(space) for space in OBSERVATIONS),
    ],
    "action": [
        *(discrete(3), discrete(2, start=1), box(), box((-1, 1), (-1, math.inf)), box(dtype="float64")),
        *(describe_actions(space) for space in ACTIONS),
    ],
    "rollout_steps": [5],
    "network": [
        SPEC.network.model_copy(update=change)
        for change in (
            {"hidden": (9,)},
            {"hidden": (8, 8)},
            {"activation": "relu"},
            {"memory": "lstm"},
            {"memory": "gru"},
            {"memory_size": 65},
            {"custom": "module:Class"},
        )
    ],
    "frame_stack": [2],
    "normalise_observations": [True],
    "return_discount": [0.99, 1.0],
}
CHANGES = pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OTHERS.items() for value in values], ids=str
)


def test_each_field_of_the_spec_is_changed_by_these_tests() -> None:
    assert set(OTHERS) == {field.name for field in fields(Spec)} - {"wire_schema"}


# Known failure KF-OPS-05, the rule.
@CHANGES
def test_the_digest_changes_with_each_field(name: str, value: Any) -> None:
    assert replace(SPEC, **{name: value}).digest() != SPEC.digest()


def test_a_new_wire_schema_leaves_the_digest_so_that_checkpoints_outlive_it() -> None:
    """Each message names its schema itself."""
    assert replace(SPEC, wire_schema=WIRE_SCHEMA + 1).digest() == SPEC.digest()


def test_no_two_of_these_specs_share_a_digest() -> None:
    digests = [replace(SPEC, **{name: value}).digest() for name, values in OTHERS.items() for value in values]
    assert len(set(digests)) == len(digests)


def test_the_digest_is_sixteen_hex_digits_and_the_same_for_equal_specs() -> None:
    again = make_spec(env_kwargs=dict(reversed(KWARGS.items())), wrappers=("A", "B"))
    assert again.digest() == SPEC.digest()
    assert len(SPEC.digest()) == 16
    int(SPEC.digest(), 16)


def test_the_digest_of_a_known_spec_stays_what_it_was() -> None:
    """Actors and learners of two releases compare it; a change needs a new wire schema."""
    assert make_spec().digest() == "9b6be46e653f4993"
    assert make_spec(action=box((-1, math.inf), (-0.1, 0.1))).digest() == "b774948c046f0b6b"


@CHANGES
def test_differences_name_the_field_and_both_values(name: str, value: Any) -> None:
    other = replace(SPEC, **{name: value})
    (line,) = SPEC.differences(other)
    assert line.startswith(f"{name}: ")
    assert " != " in line


@pytest.mark.parametrize("value", [1, 1.0], ids=["int", "float"])
def test_differences_are_never_empty_when_digests_differ(value: Any) -> None:
    """True, 1 and 1.0 are equal in Python, but the environment may tell them apart."""
    mine, theirs = make_spec(env_kwargs={"wind": True}), make_spec(env_kwargs={"wind": value})
    assert mine.digest() != theirs.digest()
    assert mine.differences(theirs) != []


def test_equal_specs_have_no_differences() -> None:
    assert SPEC.differences(make_spec(env_kwargs=dict(KWARGS), wrappers=("A", "B"))) == []


@CHANGES
def test_a_spec_survives_json(name: str, value: Any) -> None:
    spec = replace(SPEC, **{name: value})
    again = Spec.from_json(json.loads(json.dumps(spec.to_json(), allow_nan=False)))
    assert again == spec
    assert again.digest() == spec.digest()


@pytest.mark.parametrize("action", [discrete(3, start=-1), box((-math.inf, 0), (2, math.inf))], ids=str)
def test_a_description_survives_its_text(action: Any) -> None:
    description = make_description(make_spec(action=action), envs_per_actor=7)
    assert RunDescription.from_text(description.to_text()) == description
    assert RunDescription.from_text(description.to_text().encode()) == description


def test_a_description_carries_the_digest_of_its_spec() -> None:
    description = make_description(SPEC)
    assert description.digest == SPEC.digest()
    assert json.loads(description.to_text())["digest"] == SPEC.digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "3",
        "[]",
        "{}",
        '{"spec": 1, "join": {}}',
        f'{{"spec": {{"wire_schema": {WIRE_SCHEMA}}}, "join": {{}}}}',
        b"\xff\xfe",
        "[" * 10,
    ],
    ids=repr,
)
def test_a_text_that_is_no_description_is_a_configuration_error(text: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="unreadable"):
        RunDescription.from_text(text)


@pytest.mark.parametrize("missing", ["spec", "join"])
def test_a_description_that_lacks_a_part_is_a_configuration_error(missing: str) -> None:
    values = json.loads(make_description().to_text())
    del values[missing]
    with pytest.raises(ConfigurationError, match=missing):
        RunDescription.from_text(json.dumps(values))


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"memory": "elephant"},
        {"memory_size": "64"},
        {"memory_size": 64.0},
        {"hidden": [8, "8"]},
        {"hidden": None},
        {"custom": 3},
    ],
    ids=str,
)
def test_a_network_that_is_none_damages_the_spec_also_where_the_digest_is_right(
    change: dict[str, Any],
) -> None:
    values = json.loads(make_description().to_text())
    values["spec"]["network"].update(change)
    covered = {name: value for name, value in values["spec"].items() if name != "wire_schema"}
    text = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    values["digest"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    with pytest.raises(DamagedSpecError, match="spec key is unreadable"):
        RunDescription.from_text(json.dumps(values))


def test_the_text_of_a_description_stays_what_it_was() -> None:
    """Actors of other releases read it."""
    network = NetworkConfig(hidden=(8, 4), memory="gru", memory_size=2)
    description = make_description(make_spec(network=network, wrappers=("A",), env_kwargs={"wind": 1.0}))
    assert description.to_text() == (
        '{"digest": "61983e107733468a", "join": {"env_timeout_s": 60.0, "envs_per_actor": 2, '
        '"evaluation_episodes": 2, "evaluation_interval_s": 0.25, "evaluation_max_share": 0.05, '
        '"lock_step": null, "seed": 1, "vectorization": "sync"}, "spec": {"action": {"kind": "discrete", '
        '"n": 2, "start": 0}, "environment": {"env_id": "tests.envs:Terminating-v0", "env_kwargs": '
        '{"wind": 1.0}, "wrappers": ["A"]}, "frame_stack": 1, "network": {"activation": "tanh", '
        '"custom": null, "hidden": [8, 4], "memory": "gru", "memory_size": 2}, "normalise_observations": '
        'false, "observation": [{"dtype": "float32", "high": 1.0, "kind": "vector", "path": [], '
        '"shape": [2], "sizes": [], "starts": []}], "return_discount": null, "rollout_steps": 4, '
        '"wire_schema": 2}}'
    )


def test_settings_that_older_releases_do_not_know_travel_only_where_they_are_set() -> None:
    usual, spec = make_description(), make_spec()
    chosen = {
        "evaluation_environments": 3,
        "evaluation_wrappers": (),
        "evaluation_limit_s": 5.0,
        "evaluation_end_wait_s": 0.0,
        "open_rollouts": 1,
    }
    for name, value in chosen.items():
        assert name not in usual.to_text()
        description = make_description(spec, **{name: value})
        assert RunDescription.from_text(description.to_text()) == description
        assert description.digest == usual.digest, "how a run is evaluated is no part of its spec"
    assert make_description(spec, evaluation_wrappers=("A",)).evaluated.wrappers == ("A",)
    assert usual.evaluated == spec.environment


# Known failure KF-WIRE-06.
@pytest.mark.parametrize("schema", [WIRE_SCHEMA - 1, WIRE_SCHEMA + 1])
def test_a_run_of_another_wire_schema_says_which_release_to_install(schema: int) -> None:
    text = make_description(replace(make_spec(), wire_schema=schema)).to_text()
    with pytest.raises(ConfigurationError, match=f"schema {schema}.*install the learner's release"):
        RunDescription.from_text(text)


def test_a_learner_describes_what_its_configuration_says() -> None:
    config = make_config(
        env_id="Lander-v0",
        env_kwargs={"wind": 0.5},
        wrappers=["TimeLimit(max_episode_steps=3)"],
        frame_stack=4,
        seed=9,
        envs_per_actor=3,
        vectorization="async",
        network={"hidden": [32, 16], "activation": "relu", "memory": "gru", "memory_size": 8},
        evaluation={"episodes": 5, "interval_s": 2.0, "max_share": 0.1},
    )
    observation = ObservationSpec.vector(4, "float64")
    description = describe_run(config, EnvironmentSpaces(observation, discrete(2)), rollout_steps=64)
    assert description.spec == Spec(
        environment=source("Lander-v0", "TimeLimit(max_episode_steps=3)", wind=0.5),
        observation=observation,
        action=discrete(2),
        rollout_steps=64,
        network=NetworkConfig(hidden=(32, 16), activation="relu", memory="gru", memory_size=8),
        frame_stack=4,
    )
    assert description.join == JoinSettings(9, 3, "async", 5, 2.0, 0.1, 600.0)


def test_the_spec_says_how_long_actors_retry_building_and_defaults_to_30_s() -> None:
    config = make_config(env_id="Lander-v0", env_retry_s=5)
    spaces = EnvironmentSpaces(ObservationSpec.vector(4, "float64"), discrete(2))
    description = describe_run(config, spaces, rollout_steps=64)
    assert RunDescription.from_text(description.to_text()).join.env_retry_s == 5
    usual = make_description()
    assert "env_retry_s" not in usual.to_text(), "actors of older releases do not know it"
    assert RunDescription.from_text(usual.to_text()).join.env_retry_s == 30


def test_settings_in_which_actors_may_differ_do_not_change_the_digest() -> None:
    assert make_description(SPEC, seed=1).digest == make_description(SPEC, seed=2).digest
