"""`dppo_redis.train` passes the configuration to the command, and refuses mistakes before the start."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import PpoConfig, RunConfig
from ops.library.keyword_messages import with_keywords
from ops.library.request import Request, make_request
from ops.options import TrainOptions, read_options

CARTPOLE = gymnasium.make("CartPole-v1")


def request(env: object = "CartPole-v1", **settings: Any) -> Request:
    ours = ("config", "run", "run_dir", "redis", "resume", "overwrite", "event_log")
    arguments = {name: settings.pop(name, None) for name in ours}
    arguments |= {name: arguments[name] or False for name in ("resume", "overwrite")}
    return make_request(env, settings, **arguments)


def read_by_command(request: Request, folder: Path) -> TrainOptions:
    import tomli_w

    file = folder / "settings.toml"
    file.write_text(tomli_w.dumps(dict(request.settings)))
    return read_options(TrainOptions, request.command(file)[1:], "dppo-redis train")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"actors": np.int64(3), "total_steps": 100_000, "lock_step": True},
        {"ppo": {"learning_rate": 1e-4, "update_epochs": 3}, "network": {"hidden": (32, 16)}},
        {"ppo": PpoConfig(gamma=0.5), "wrappers": ["FlattenObservation"], "target_return": None},
        {"env_kwargs": {"a": [1, 2.5, "5"], "b": {"c": True}, "d": "1"}, "evaluation": {"enabled": False}},
        {"init_from": Path("/somewhere")},
    ],
    ids=str,
)
def test_the_command_reads_the_callers_configuration(settings: dict[str, Any], tmp_path: Path) -> None:
    requested = request(run="mine", **settings)
    read = read_by_command(requested, tmp_path)
    assert read.config == requested.config
    assert (read.run, read.run_dir, read.json) == ("mine", Path("runs/mine").absolute(), True)


def test_keyword_arguments_win_over_a_configuration_section_by_section(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        'env_id = "Base-v0"\nactors = 7\n[ppo]\ngamma = 0.5\nclip_epsilon = 0.1\n'
    )
    for base in (tmp_path / "base.toml", str(tmp_path / "base.toml"), load_toml(tmp_path / "base.toml")):
        config = request(None, config=base, ppo={"gamma": 0.7}).config
        assert (config.env_id, config.actors, config.ppo.gamma, config.ppo.clip_epsilon) == (
            "Base-v0",
            7,
            0.7,
            0.1,
        )
    assert request("CartPole-v1", config=RunConfig(env_id="Base-v0")).config.env_id == "CartPole-v1"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"total_steps": 0}, "total_steps: must be at least 1 and .*got 0."),
        ({"ppo": {"gama": 1}}, "unknown setting ppo.gama: did you mean ppo.gamma"),
        ({"env_id": "Other-v0"}, "env already names the environment"),
        ({"config": "/nowhere.toml"}, "cannot read /nowhere.toml"),
        ({"run": "a/b"}, "a/b"),
        ({"redis": "http://host"}, "Redis URL"),
        ({"resume": True}, "^resume=True needs run_dir or run;"),
        ({"resume": True, "run_dir": "/nowhere"}, "/nowhere holds no run to resume; .*leave out resume=True"),
        ({"zzz": 1}, r"unknown setting zzz: see help\(dppo_redis.train\)"),
        ({"batch_size": 64}, "here ppo.minibatch_size; in CleanRL"),
        ({"resume": True, "overwrite": True}, "leave out overwrite"),
        ({"resume": "always"}, 'True, False or "auto"'),
    ],
    ids=str,
)
def test_mistakes_are_refused_in_the_words_of_the_api(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        request(**settings)


class Here(gymnasium.Env[Any, Any]):
    """An environment that a notebook seems to have defined, see `in_main`."""


@pytest.fixture
def in_main(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Here, "__module__", "__main__")
    yield
    for env_id in [name for name in gymnasium.registry if name.startswith("Here")]:
        del gymnasium.registry[env_id]


@pytest.mark.usefixtures("in_main")
@pytest.mark.parametrize("entry_point", [Here, partial(Here), "__main__:Here"], ids=str)
@pytest.mark.parametrize("env_id", ["Here-v3", "Here", "__main__:Here-v3"])
def test_an_environment_of_this_program_is_refused_with_a_remedy(entry_point: Any, env_id: str) -> None:
    gymnasium.register("Here-v3", entry_point)
    with pytest.raises(ConfigurationError) as raised:
        request(env_id)
    message = str(raised.value)
    assert "defined in this notebook or script" in message
    assert "Put Here into a module file, my_module.py" in message
    assert f'pass "my_module:{env_id.rpartition(":")[2]}"' in message


@pytest.mark.usefixtures("in_main")
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Here, 'Here is a class.*Put Here into a module file, my_module.py.*"my_module:MyEnv-v0"'),
        (Here(), 'Here is an object.*"my_module:MyEnv-v0"'),
        (lambda: Here(), "environment's class is a function"),
        (CARTPOLE, 'CartPoleEnv is an object.*Pass "CartPole-v1"'),
        (type(CARTPOLE.unwrapped), 'CartPoleEnv is a class.*Pass "CartPole-v1"'),
        (gymnasium.spec("CartPole-v1"), 'EnvSpec is an object.*Pass "CartPole-v1"'),
        (7, "int is an object"),
    ],
)
def test_a_value_that_is_no_environment_id_is_named_in_the_refusal(env: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        request(env)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"wrappers": ["__main__:Mine"]}, 'wrappers: .*"my_module:Mine"'),
        ({"wrappers": [Here]}, 'wrappers: pass its name as text, "my_module:Here"'),
        ({"wrappers": [lambda env: env]}, 'wrappers: pass its name as text, "my_module:MyWrapper"'),
        ({"evaluation": {"wrappers": ["__main__:Mine"]}}, "evaluation.wrappers: "),
        ({"network": {"custom": "__main__:Net"}}, "network.custom: "),
    ],
    ids=["of the program", "a class", "a lambda", "of the evaluation", "a network"],
)
def test_wrappers_and_networks_of_this_program_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        request(**settings)


@pytest.mark.parametrize(
    ("message", "rewritten"),
    [
        (
            "/x holds run a: pass --resume, --overwrite or another --run-dir",
            "/x holds run a: pass resume=True, overwrite=True or another run_dir",
        ),
        (
            "/x holds no checkpoint: --resume auto starts such a run from the beginning",
            '/x holds no checkpoint: resume="auto" starts such a run from the beginning',
        ),
        ("set --ppo.minibatch-size 64 (see dppo-redis train --help)", "set ppo.minibatch_size 64"),
        (
            "name an environment, for example: dppo-redis train CartPole-v1",
            'name an environment, for example: dppo_redis.train("CartPole-v1")',
        ),
        ("--no-use-action-mask, --lock-step", "use_action_mask=False, lock_step=True"),
        ("dppo-redis enjoy RUN_DIR --video FILE.mp4", "dppo-redis enjoy RUN_DIR --video FILE.mp4"),
    ],
)
def test_a_message_of_the_command_is_rewritten_with_keywords(message: str, rewritten: str) -> None:
    assert with_keywords(message) == rewritten


def test_names_of_other_libraries_are_read_with_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"vf_coef is ppo.value_coef here \(stable-baselines3 does not halve"
    ):
        assert request(vf_coef=0.25).config.ppo.value_coef == 0.25
    with pytest.warns(UserWarning, match=r"ppo.ent_coef is ppo.entropy_coef here"):
        assert request(ppo={"ent_coef": 0.5}).config.ppo.entropy_coef == 0.5
