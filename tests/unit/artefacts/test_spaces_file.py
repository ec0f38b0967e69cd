"""The spaces of a run's environment, kept in its directory."""

import json
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.artefacts.spaces_file import describe_stored, read_spaces, write_spaces
from dppo_redis.spaces.environment_spaces import shapes_of
from tests.factories import describe, make_config, spaces_of

ENVIRONMENTS: list[dict[str, Any]] = [
    {"env_id": "CartPole-v1"},
    {
        "env_id": "tests.envs:Slow-v0",
        "env_kwargs": {"ms": 0.5},
        "wrappers": ["TimeLimit(max_episode_steps=3)"],
    },
    {"env_id": "Pendulum-v1"},
    {"env_id": "tests.envs:Masked-v0"},
    {"env_id": "tests.envs:Everything-v0"},
]


@pytest.mark.parametrize("knobs", ENVIRONMENTS, ids=lambda knobs: knobs["env_id"])
def test_stored_spaces_describe_the_run_without_its_environment(
    knobs: dict[str, Any], tmp_path: Path
) -> None:
    config = make_config(**knobs)
    write_spaces(tmp_path, config, spaces_of(config))
    assert read_spaces(tmp_path, config) == spaces_of(config)
    assert describe_stored(tmp_path, config, lambda _: pytest.fail("it looked")) == describe(config)


def test_the_environments_own_shapes_are_kept_but_not_asked_for(tmp_path: Path) -> None:
    config = make_config(env_id="tests.envs:Everything-v0")
    looked = spaces_of(config)
    write_spaces(tmp_path, config, looked)
    found = read_spaces(tmp_path, config)
    assert found is not None
    assert shapes_of(found.observation) == shapes_of(looked.observation) != []
    file = RunFiles(tmp_path).spaces
    values = json.loads(file.read_text())
    del values["observation_shapes"]  # as an earlier release wrote it
    file.write_text(json.dumps(values))
    assert read_spaces(tmp_path, config) == looked
    file.write_text(json.dumps({**values, "observation_shapes": [[9]] * len(looked.observation.fields)}))
    assert read_spaces(tmp_path, config) is None


@pytest.mark.parametrize(
    "change",
    [
        {"env_kwargs": {"length": 4}},
        {"env_id": "Pendulum-v1"},
        {"use_action_mask": False},
        {"wrappers": ["A"]},
    ],
    ids=str,
)
def test_stored_spaces_of_another_environment_are_ignored(change: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(env_id="CartPole-v1")
    write_spaces(tmp_path, config, spaces_of(config))
    assert read_spaces(tmp_path, make_config(**{"env_id": "CartPole-v1", **change})) is None


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"environment": 3}'])
def test_a_file_that_is_missing_or_damaged_has_the_environment_looked_at(
    text: str | None, tmp_path: Path
) -> None:
    config = make_config(env_id="CartPole-v1")
    if text is not None:
        RunFiles(tmp_path).spaces.write_text(text)
    assert describe_stored(tmp_path, config, spaces_of) == describe(config)
