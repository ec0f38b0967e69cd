"""The settings of a run: their allowed values, and the one-line messages about others."""

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.config import RunConfig
from tests.factories import make_config


def refusal(values: dict[str, Any]) -> str:
    """The message; always one line."""
    with pytest.raises(ConfigurationError) as caught:
        RunConfig.model_validate(values)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_status == ExitStatus.CONFIGURATION
    return message


def nested(knob: str, value: Any) -> dict[str, Any]:
    """`ppo.gamma` and a value as a configuration that sets nothing else."""
    *sections, name = knob.split(".")
    values = {name: value}
    for section in reversed(sections):
        values = {section: values}
    return values


def test_the_defaults_are_a_valid_configuration() -> None:
    config = make_config()
    assert config.publish_every <= config.max_staleness


def test_a_setting_is_read_by_its_former_name_but_not_by_both() -> None:
    assert RunConfig.model_validate({"env_id": "A-v0", "env_steps": 7}).total_steps == 7
    with pytest.raises(ConfigurationError, match="env_steps is another name of total_steps: leave it out"):
        RunConfig.model_validate({"env_id": "A-v0", "env_steps": 7, "total_steps": 8})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("max_stalenes", "max_staleness"),
        ("env_step", "total_steps"),
        ("publish_evry", "publish_every"),
        ("ppo.gama", "ppo.gamma"),
        ("ppo.clip_epsilom", "ppo.clip_epsilon"),
        ("network.activations", "network.activation"),
        ("evaluation.episode", "evaluation.episodes"),
        ("checkpoint.interval", "checkpoint.interval_s"),
    ],
)
def test_an_unknown_key_suggests_the_nearest_one(typed: str, meant: str) -> None:
    assert refusal(nested(typed, 1)) == f"unknown setting {typed}: did you mean {meant}?"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"learning_rate": 1e-4}, "unknown setting learning_rate: did you mean ppo.learning_rate?"),
        ({"learning_rates": 1e-4}, "did you mean ppo.learning_rate?"),
        ({"ppo": {"actors": 3}}, "unknown setting ppo.actors: did you mean actors, above all [tables]?"),
        ({"PPO": {"gamma": 0.9}}, "unknown setting PPO: did you mean ppo?"),
        ({"total-steps": 3}, "did you mean total_steps?"),
        ({"interval_s": 3}, "did you mean evaluation.interval_s or checkpoint.interval_s?"),
        ({"evaluation": {"keep": 3}}, "did you mean checkpoint.keep?"),
        ({"optimizer": {"learning_rate": 3}}, "no such table; did you mean ppo.learning_rate?"),
        ({"ent_coef": 0.1, "ppo": 3}, "ppo: write a table of settings"),
        ({"network": {"ent_coef": 0.1}}, "did you mean ppo.entropy_coef?"),
        ({"ppo": {"n_steps": 128}}, "did you mean rollout_steps, above all [tables]?"),
        ({"ppo": {"batch_size": 64}}, "here ppo.minibatch_size"),
        ({"num_envs": 8}, "envs_per_actor, times actors"),
        ({"run_dir": "x"}, "it is an option of the command, not a setting: --run-dir"),
        ({"history": "x"}, "it is an option of the command, not a setting: --event-log"),
    ],
    ids=str,
)
def test_a_key_of_another_table_or_library_names_ours(values: dict[str, Any], says: str) -> None:
    assert says in refusal(values)


def test_a_foreign_name_is_read_where_ours_stands() -> None:
    values = {"n_steps": 128, "total_timesteps": 1e6, "ppo": {"n_epochs": 4, "clip_range": 0.1}}
    config = RunConfig.model_validate(values)
    assert (config.rollout_steps, config.total_steps) == (128, 1_000_000)
    assert (config.ppo.update_epochs, config.ppo.clip_epsilon) == (4, 0.1)


def test_a_key_that_is_near_none_points_to_the_help() -> None:
    assert "--help" in refusal({"zzz": 1})


@pytest.mark.parametrize(
    ("knob", "value", "allowed"),
    [
        ("actors", 0, "at least 1"),
        ("actors", 1001, "at most 1000"),
        ("envs_per_actor", -1, "at least 1"),
        ("rollout_steps", 0, "at least 1"),
        ("total_steps", 0, "at least 1"),
        ("seed", -1, "at least 0"),
        ("seed", 2**32, "at least 0 and below 4,294,967,296"),
        ("publish_every", 0, "at least 1"),
        ("max_staleness", -1, "at least 0"),
        ("vectorization", "forks", "'auto', 'sync', 'async' or 'threads'"),
        ("open_rollouts", -1, "at least 0"),
        ("target_on", "test", "'eval' or 'train'"),
        ("device", "gpu", "auto, cpu, cuda or cuda:N"),
        ("ppo", 3, "write a table of settings in TOML, a dict in Python"),
        ("env_id", "x" * 201, "at most 200"),
        ("target_return", math.nan, "finite"),
        ("ppo.batch_steps", 1, "at least 8"),
        ("ppo.minibatch_size", 1, "at least 2"),
        ("ppo.update_epochs", 0, "at least 1"),
        ("ppo.learning_rate", 0, "above 0"),
        ("ppo.learning_rate", 2, "at most 1"),
        ("ppo.learning_rate", math.inf, "finite"),
        ("ppo.clip_epsilon", 1, "above 0 and below 1"),
        ("ppo.gamma", 1.5, "at most 1"),
        ("ppo.gamma", "high", "must be a number, at least 0 and at most 1"),
        ("ppo.gae_lambda", -0.1, "at least 0"),
        ("ppo.value_coef", -1, "at least 0"),
        ("ppo.entropy_coef", -1, "at least 0"),
        ("ppo.max_grad_norm", 0, "above 0"),
        ("ppo.adam_epsilon", 0, "above 0"),
        ("network.hidden", [], "at least 1"),
        ("network.hidden", [64] * 9, "at most 8"),
        ("network.hidden", [0], "from 1 to 4096"),
        ("network.hidden", [64, 5000], "from 1 to 4096"),
        ("network.hidden", [4096] * 4, "192 MiB"),
        ("network.hidden", "wide", "must be a list"),
        ("network.activation", "gelu", "'tanh' or 'relu'"),
        ("evaluation.episodes", 0, "at least 1"),
        ("evaluation.max_share", 1.5, "at most 1"),
        ("checkpoint.keep", 0, "at least 1"),
        ("checkpoint.interval_s", -1, "at least 0"),
    ],
)
def test_a_bad_value_is_one_line_with_the_knob_the_allowed_range_and_the_value(
    knob: str, value: Any, allowed: str
) -> None:
    message = refusal(nested(knob, value))
    assert message.startswith(f"{knob}: ")
    assert allowed in message
    assert repr(value) in message


@pytest.mark.parametrize("section", ["ppo", "network", "evaluation", "checkpoint"])
def test_a_value_where_a_section_belongs_names_the_section(section: str) -> None:
    assert refusal({section: 3}).startswith(section)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        None,
        [1, math.nan],
        [[None]],
        {"a": -math.inf},
        {"a": {1}},
        {1: 2},
        {"a": {1: 2}},
        [{1: 2}],
    ],
    ids=repr,
)
def test_an_environment_argument_that_has_no_json_text_is_refused(value: Any) -> None:
    """It becomes part of the spec, which is published as JSON and digested."""
    assert refusal({"env_kwargs": {"gravity": value}}).startswith("env_kwargs")


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, "1", [1, "a", [True]], {"a": [1.5], "b": {"c": 1}}], ids=repr
)
def test_an_environment_argument_keeps_its_type(value: Any) -> None:
    kept = make_config(env_kwargs={"gravity": value}).env_kwargs["gravity"]
    assert (kept, type(kept)) == (value, type(value))


# Known failure KF-OPS-06: a limit below the publication interval would drop every rollout.
@pytest.mark.parametrize(("max_staleness", "publish_every"), [(0, 1), (3, 4), (4, 10)])
def test_a_staleness_limit_below_the_publication_interval_is_refused_with_both_numbers(
    max_staleness: int, publish_every: int
) -> None:
    message = refusal({"max_staleness": max_staleness, "publish_every": publish_every})
    assert f"max_staleness ({max_staleness})" in message
    assert f"publish_every ({publish_every})" in message
    assert f"set max_staleness to {publish_every} or more" in message


def test_a_staleness_limit_equal_to_the_publication_interval_is_accepted() -> None:
    assert make_config(max_staleness=5, publish_every=5).max_staleness == 5


def test_lock_step_mode_is_refused_with_another_publication_interval_than_1() -> None:
    message = refusal({"lock_step": True, "publish_every": 2})
    assert "publish_every is 2" in message
    assert "set publish_every to 1" in message


def test_the_staleness_limit_of_lock_step_mode_is_0_for_any_max_staleness() -> None:
    assert make_config(lock_step=True, max_staleness=7).staleness_limit == 0
    assert make_config(lock_step=True, max_staleness=0).staleness_limit == 0
    assert make_config(max_staleness=7).staleness_limit == 7


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_config().actors = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        make_config().ppo.gamma = 0.5  # type: ignore[misc]


def test_a_configuration_survives_being_written_down() -> None:
    config = make_config(env_id="CartPole-v1", network={"hidden": [32]}, ppo={"gamma": 0.9})
    assert RunConfig.model_validate(config.model_dump()) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "run.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_a_toml_file_sets_knobs_and_sections(tmp_path: Path) -> None:
    text = """
        env_id = "CartPole-v1"
        actors = 3
        [ppo]
        gamma = 0.9
        [network]
        hidden = [8, 8]
        [env_kwargs]
        x = 1
    """
    config = load_toml(written(tmp_path, text))
    assert (config.env_id, config.actors, config.ppo.gamma) == ("CartPole-v1", 3, 0.9)
    assert (config.network.hidden, config.env_kwargs) == ((8, 8), {"x": 1})


def test_an_empty_toml_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_toml(written(tmp_path, "")) == make_config()


@pytest.mark.parametrize(
    "text",
    ["actors = ", "actors = 3\nactors = 4", "[ppo\n", b"\xff\xfe"],
    ids=["cut", "twice", "bracket", "bytes"],
)
def test_a_file_that_is_not_toml_is_named_in_one_line(tmp_path: Path, text: str | bytes) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigurationError, match=r"not valid TOML|UTF-16") as caught:
        load_toml(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_a_directory_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*run\.toml: No such file"):
        load_toml(tmp_path / "run.toml")
    with pytest.raises(ConfigurationError, match=r"cannot read .*: Is a directory"):
        load_toml(tmp_path)


def test_a_bad_value_in_a_file_names_the_file_and_the_knob(tmp_path: Path) -> None:
    file = written(tmp_path, "[ppo]\ngamma = 2\n")
    with pytest.raises(ConfigurationError) as caught:
        load_toml(file)
    assert str(caught.value).startswith(f"{file}: ppo.gamma: ")


def test_a_file_counts_steps_as_the_command_line_does(tmp_path: Path) -> None:
    config = load_toml(written(tmp_path, "total_steps = 1e6\n[ppo]\nbatch_steps = 4_096\n"))
    assert (config.total_steps, config.ppo.batch_steps) == (1_000_000, 4096)


@pytest.mark.parametrize("number", ["1.5", "1e16", "inf", "nan", "99999999999999999999999"])
def test_a_budget_that_is_not_whole_or_cannot_be_counted_is_refused(tmp_path: Path, number: str) -> None:
    with pytest.raises(ConfigurationError, match="total_steps"):
        load_toml(written(tmp_path, f"total_steps = {number}\n"))
