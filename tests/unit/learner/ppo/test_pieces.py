"""A large batch is read in pieces with the same result; out-of-memory errors name the settings to lower."""

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.spaces import network_memory
from dppo_redis.spaces.gymnasium_spaces import describe_observations
from learner.malloc import naming_memory_settings
from learner.ppo.prepare import Prepared, prepare
from tests.factories import CPU, make_batch, make_model, make_ppo, make_spec

ROOT = Path(__file__).parents[4]
IMAGE = describe_observations(gymnasium.spaces.Box(0, 255, (10, 10, 1), np.uint8))
MARKS: dict[str, Any] = {"terminated": [(1, 0), (7, 3)], "truncated": [(4, 2)], "invalid": [(8, 3)]}
MEMORY = NetworkConfig(hidden=(8,), memory="lstm", memory_size=4)


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(rollout_steps=64),
        make_spec(rollout_steps=64, observation=IMAGE, frame_stack=2),
        make_spec(rollout_steps=64, network=MEMORY),
        make_spec(rollout_steps=64, observation=IMAGE, network=MEMORY),
    ],
    ids=["vectors", "images", "memory", "images and memory"],
)
def test_pieces_come_to_what_the_whole_comes_to(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model(spec), make_batch(spec, count=20, **MARKS)

    def prepared() -> Prepared:
        return prepare(model, spec, make_ppo(correction="vtrace"), None, batch, CPU)

    whole = prepared()
    seen: list[int] = []
    evaluate = model.evaluate

    def counted(inputs: Any, actions: Any) -> Any:
        seen.append(len(inputs))
        return evaluate(inputs, actions)

    monkeypatch.setattr(model, "evaluate", counted)
    monkeypatch.setattr(network_memory, "_PIECE_BYTES", 1)
    parts = prepared()
    assert sum(seen) == 64 * 20
    assert len(seen) == 5
    for name in ("values", "returns", "advantages", "old_log_probs", "weights", "valid"):
        torch.testing.assert_close(getattr(parts.rows, name), getattr(whole.rows, name))
    assert parts.log_ratios == pytest.approx(whole.log_ratios, abs=1e-5)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 5.3 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 5 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 5 bytes."),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
    ids=["numpy", "linux", "windows", "cuda"],
)
def test_an_out_of_memory_error_names_the_settings_to_lower(error: Exception) -> None:
    knobs = make_ppo(batch_steps=5000, minibatch_size=50)
    named = r"batch_steps \(5000\).*minibatch_size \(50\)"
    with pytest.raises(ConfigurationError, match=named), naming_memory_settings(knobs):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory")])
def test_other_errors_are_defects_as_before(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), naming_memory_settings(make_ppo()):
        raise error


MODULE = """
import resource
import gymnasium
import numpy as np

class Frames(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros((84, 84, 4), np.uint8), {}

    def step(self, action):
        Frames.steps += 1
        if Frames.steps == 500:  # the rollout is there; no room is left for the update
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, used + 2**25))
        return np.zeros((84, 84, 4), np.uint8), 1.0, False, False, {}

gymnasium.register("Frames-v0", Frames, max_episode_steps=100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc or RLIMIT_AS: run on Linux")
def test_a_run_without_the_memory_for_its_batch_ends_with_a_line_and_status_78(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    (tmp_path / "frames_world.py").write_text(MODULE)
    command = [sys.executable, "-m", "ops", "serial", "frames_world:Frames-v0", "--run-dir", "run"]
    knobs = ["--ppo.batch-steps", "512", "--envs-per-actor", "1", "--vectorization", "sync"]
    answer = subprocess.run(
        [*command, *knobs],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 78, answer.stderr
    assert "ppo.batch_steps (512)" in answer.stderr
    assert "Traceback" not in answer.stderr
