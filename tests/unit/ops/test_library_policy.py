"""`dppo_redis.load` finds a policy by any path of a run; the policy acts as actors do."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete

import dppo_redis
from dppo_redis.artefacts.best_policy import keep_best
from dppo_redis.artefacts.exports import Export, write_export
from dppo_redis.artefacts.spaces_file import write_spaces
from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_single
from dppo_redis.environments.masks import MASK
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.run_plan import plan
from dppo_redis.protocol.spec import source_of
from ops.fleet.run_directory import RunDirectory, prepare
from tests.factories import make_config, make_weights, scattered_model
from tests.unit.policy.test_player import CASES


def make_run(directory: Path, env_id: str, **knobs: Any) -> Path:
    """The directory of a run with a best policy, and an export beside it."""
    config = make_config(env_id=env_id, **knobs)
    spaces = inspect(source_of(config))
    spec = plan(config, spaces, serial=False).description.spec
    directory.mkdir()
    prepare(RunDirectory("kept", directory), config, resume=False)
    write_spaces(directory, config, spaces)
    weights = make_weights(spec, scattered_model(spec))
    keep_best(directory, weights, Evaluation(1, 0, 0, 0, 9.0, 0.0, 9.0, 1))
    write_export(directory / "export", Export("kept", spec, weights))
    return directory


@pytest.mark.parametrize(("env_id", "parts"), CASES.values(), ids=list(CASES))
def test_a_policy_plays_the_raw_environment(tmp_path: Path, env_id: str, parts: dict[str, Any]) -> None:
    policy = dppo_redis.load(make_run(tmp_path / "run", env_id, **parts))
    with closing(make_single(source_of(make_config(env_id=env_id)))) as env:
        observation, info = env.reset(seed=1)
        for step in range(30):
            action = policy.act(observation, greedy=bool(step % 2), mask=info.get(MASK))
            assert env.action_space.contains(action)
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                observation, info = env.reset()
                policy.reset()


def test_every_path_leads_to_the_same_policy(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "CartPole-v1")
    observations = np.random.default_rng(1).normal(size=(50, 4))
    chosen = []
    for path in ("", "best_policy.msgpack", "export", "export/policy.json", "export/policy.safetensors"):
        policy = dppo_redis.load(str(run_dir / path))
        chosen.append([int(policy.act(observation)) for observation in observations])
        assert (policy.run, policy.env_id) == ("kept", "CartPole-v1")
    assert len(set(chosen[0])) == 2
    assert chosen == [chosen[0]] * 5


def test_memory_lasts_until_reset(tmp_path: Path) -> None:
    network = NetworkConfig(hidden=(8,), memory="lstm", memory_size=5)
    policy = dppo_redis.load(make_run(tmp_path / "run", "tests.envs:Recall-v0", network=network))
    with closing(gymnasium.make("tests.envs:Recall-v0")) as env:
        observation, _ = env.reset(seed=1)
    player = policy._player

    def outputs() -> Any:
        policy.act(observation)
        assert player._state is not None
        return player._state.memory.copy()

    first, second = outputs(), outputs()
    assert not np.array_equal(first, second)
    policy.reset()
    np.testing.assert_array_equal(outputs(), first)


def test_a_seed_repeats_the_drawn_actions(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "Pendulum-v1")
    drawn = []
    for seed in (1, 1, 2):
        policy = dppo_redis.load(run_dir, seed=seed)
        drawn.append([policy.act(np.zeros(3), greedy=False).item() for _ in range(5)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 1


def test_a_mask_is_obeyed_and_a_mask_of_another_form_is_refused(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "tests.envs:Masked-v0")
    policy = dppo_redis.load(run_dir)
    with closing(gymnasium.make("tests.envs:Masked-v0")) as env:
        observation, info = env.reset(seed=1)
        actions = env.action_space
    assert isinstance(actions, Discrete)
    count = len(info[MASK])
    for allowed in range(count):
        assert policy.act(observation, mask=np.arange(count) == allowed) == actions.start + allowed
    assert policy.act(observation) in actions
    with pytest.raises(dppo_redis.ObservationError, match="mask: "):
        policy.act(observation, mask=np.ones(count + 1))
    unmasked = dppo_redis.load(make_run(tmp_path / "other", "CartPole-v1"))
    with pytest.raises(dppo_redis.ObservationError, match="trained without an action mask"):
        unmasked.act(np.zeros(4), mask=[1, 0])


def test_the_environment_need_not_be_installed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "CartPole-v1")
    for file in ("config.toml", "spaces.json"):
        text = (run_dir / file).read_text()
        assert "CartPole-v1" in text
        (run_dir / file).write_text(text.replace("CartPole-v1", "gone:Gone-v9"))
    shutil.rmtree(run_dir / "export")
    with pytest.raises(dppo_redis.ConfigurationError, match="of spec"):  # named like another environment
        dppo_redis.load(run_dir)
    gone = make_config(env_id="gone:Gone-v9")
    spec = plan(gone, inspect(source_of(make_config(env_id="CartPole-v1"))), serial=False).description.spec
    keep_best(run_dir, make_weights(spec), Evaluation(1, 0, 0, 0, 9.0, 0.0, 9.0, 1))
    assert dppo_redis.load(run_dir).act(np.zeros(4)) in (0, 1)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing", "does not exist"),
        ("", "holds no run and no export"),
        ("letter.txt", "is not in a run's directory"),
        ("run/notes.txt", "notes.txt is damaged"),
    ],
)
def test_a_path_without_a_policy_is_named_in_the_refusal(tmp_path: Path, path: str, words: str) -> None:
    make_run(tmp_path / "run", "CartPole-v1")
    for file in ("letter.txt", "run/notes.txt"):
        (tmp_path / file).write_text("dear reader")
    with pytest.raises(dppo_redis.ConfigurationError, match=words) as raised:
        dppo_redis.load(tmp_path / path)
    assert str(tmp_path / path) in str(raised.value)
