"""Refusals before a run starts, and errors when environments are built again."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from dppo_redis.artefacts.best_policy import read_best, write_best
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.environments.make import make_vector
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.protocol.config import MAX_PAYLOAD_BYTES
from dppo_redis.protocol.run_plan import derive, plan
from dppo_redis.protocol.wire import encode_weights
from dppo_redis.service.shutdown import StopRequest
from learner.warm_start import check_before_start
from ops.commands.serial import main as serial
from tests.envs.episodes import Terminating
from tests.envs.observations import Screen
from tests.factories import (
    describe,
    make_collector,
    make_config,
    make_description,
    make_environments,
    make_policy,
    make_spec,
    make_weights,
    source,
    spaces_of,
)
from workers.build import build_collector
from workers.episodes import evaluate


@pytest.mark.parametrize(
    "refused",
    [("--device", "cuda:99"), ("--network.custom", "nosuch:Net"), ("--age", "1", "--lock-step")],
    ids=["device", "custom network", "age in lock-step mode"],
)
def test_a_refusal_keeps_the_run_that_would_be_overwritten(tmp_path: Path, refused: tuple[str, ...]) -> None:
    kept = {"config.toml": b"[ppo]\n", "checkpoints/checkpoint-000000001.pt": b"learnt"}
    (tmp_path / "checkpoints").mkdir()
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError):
        serial(["CartPole-v1", "--run-dir", str(tmp_path), "--overwrite", *refused])
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept


def test_environments_that_cannot_be_built_again_are_broken_not_misconfigured(tmp_path: Path) -> None:
    port = tmp_path / "port"
    spec = make_spec(env_id="tests.envs:Busy-v0", env_kwargs={"port": str(port)})
    description = make_description(spec)
    build_collector(description, None, slot=0, boot=1, builds=0).close()
    port.touch()
    with pytest.raises(EnvironmentBrokenError, match="port 1234 is busy"):
        build_collector(description, None, slot=0, boot=1, builds=1)
    with pytest.raises(EnvironmentBrokenError, match="port 1234 is busy"):
        evaluate(make_policy(spec), description, StopRequest())


def pictures(num_envs: int) -> SyncVectorEnv:
    """A wrong vector version: it shows the spaces of another environment."""
    return SyncVectorEnv([Screen] * num_envs)


def test_a_native_vector_that_shows_other_spaces_is_not_taken() -> None:
    gymnasium.register(
        "Deceptive-v0",
        entry_point="tests.envs.episodes:Terminating",
        vector_entry_point="tests.unit.ops.test_starting:pictures",
    )
    try:
        vector = make_vector(source("Deceptive-v0"), 2, "auto")
        assert vector.single_observation_space == Terminating().observation_space
    finally:
        del gymnasium.registry["Deceptive-v0"]


def test_a_rollout_that_is_too_large_to_send_is_refused_with_the_length_that_fits() -> None:
    config = make_config(env_id="tests.envs:Screen-v0", rollout_steps=30_000, ppo={"batch_steps": 240_000})
    spaces = spaces_of(config)
    with pytest.raises(ConfigurationError, match=r"set rollout_steps to (\d+) or less") as caught:
        derive(config, spaces)
    fitting = int(str(caught.value).split("rollout_steps to ")[1].split()[0])
    numbers = derive(config.model_copy(update={"rollout_steps": fitting}), spaces)
    assert 0.97 * MAX_PAYLOAD_BYTES < numbers.rollout_bytes <= MAX_PAYLOAD_BYTES
    derive(config, spaces, serial=True)


def test_a_run_can_be_described_for_any_fleet() -> None:
    config = make_config(env_id="CartPole-v1", actors=5, rollout_steps=256, max_staleness=1)
    spaces = spaces_of(config)
    with pytest.raises(ConfigurationError, match="max_staleness"):
        derive(config, spaces)
    assert describe(config).spec.rollout_steps == 256


def test_a_warm_start_in_lock_step_mode_is_judged_before_it_starts(tmp_path: Path) -> None:
    first = make_config(env_id="CartPole-v1", rollout_steps=64)
    spec = describe(first).spec
    (tmp_path / "old").mkdir()
    RunFiles(tmp_path / "old").config.write_text('env_id = "CartPole-v1"\nrollout_steps = 64\n')
    RunFiles(tmp_path / "old").best_policy.write_bytes(encode_weights(make_weights(spec)))
    config = make_config(env_id="CartPole-v1", lock_step=True, init_from=str(tmp_path / "old"))
    check_before_start(plan(config, spaces_of(config), serial=False), tmp_path / "new")


def test_a_best_policy_with_a_changed_byte_is_refused(tmp_path: Path) -> None:
    spec = make_spec()
    weights = make_weights(spec)
    write_best(tmp_path, weights)
    content = RunFiles(tmp_path).best_policy.read_bytes()
    read = read_best(tmp_path, spec).arrays
    assert all(np.array_equal(read[name], array) for name, array in weights.arrays.items())
    for place in range(0, len(content), 7):
        RunFiles(tmp_path).best_policy.write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        with pytest.raises(ConfigurationError):
            read_best(tmp_path, spec)


def test_a_broken_reward_spoils_only_one_rollout() -> None:
    """The running discounted return, which continues in the next rollout, stays usable, too."""
    spec = make_spec(env_id="tests.envs:InfiniteReward-v0", return_discount=0.9)
    collector = make_collector(make_environments(spec.environment.env_id, [{"at": 2, "length": 9}] * 2), spec)
    policy = make_policy(spec)
    assert not np.isfinite(collector.collect(policy).rewards).all()
    assert np.isfinite(collector.collect(policy).discounted_returns).all()


# Known failure KF-OPS-01.
def test_a_command_computes_in_one_thread_unless_the_environment_says_otherwise() -> None:
    program = (
        "from ops import cli; cli.main(['plot', '/nowhere']); import torch; print(torch.get_num_threads())"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    for variables, threads in (({}, "1"), ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}, "2")):
        command = [sys.executable, "-c", program]
        answer = subprocess.run(
            command, env={**inherited, **variables}, capture_output=True, text=True, check=True
        )
        assert answer.stdout.splitlines()[-1] == threads
