"""Environments that hang, print, change directories or close streams do not disturb a command."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, assert_nothing_left
from tests.patience import PATIENCE

_MINE = """
import ctypes, os, pathlib, signal, subprocess, sys, time
import gymnasium, numpy
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        INIT
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        RESET
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        return numpy.zeros(2, numpy.float32), 1.0, False, self.steps >= 20, {}
gymnasium.register("Mine-v0", entry_point=Mine)
"""
_WILD = (
    "import torch; torch.set_default_dtype(torch.float64); os.chdir('/');"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "subprocess.Popen(['sleep', '86400'], start_new_session=True); os.umask(0o777)"
)
_SMALL = (
    *("--envs-per-actor", "2", "--rollout-steps", "16", "--ppo.batch-steps", "64"),
    *("--ppo.minibatch-size", "32", "--evaluation.episodes", "1", "--network.hidden", "8", "--run", "mine"),
)


def write_mine(directory: Path, init: str = "pass", reset: str = "pass") -> None:
    (directory / "mine.py").write_text(_MINE.replace("INIT", init).replace("RESET", reset))


def files(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory)) for path in directory.rglob("*") if "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("command", ["train", "serial"])
def test_a_stop_works_while_the_constructor_hangs(command: str, tmp_path: Path) -> None:
    write_mine(tmp_path, init="signal.signal(15, signal.SIG_IGN); open('begun', 'w'); time.sleep(1e6)")
    with Command(command, "mine:Mine-v0", *_SMALL, cwd=tmp_path) as running:
        wait(running, (tmp_path / "begun").exists)
        began = time.monotonic()
        running.send(signal.SIGTERM)
        assert running.wait(10) == ExitStatus.TERMINATED
        assert time.monotonic() - began < 5 * PATIENCE
        assert_nothing_left(running)
        assert files(tmp_path) == {"mine.py", "begun"}


def wait(running: Command, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not condition():
        assert running.running, running.err
        assert time.monotonic() < deadline, running.err
        time.sleep(0.02)


@pytest.mark.parametrize(
    "place", [{"init": "time.sleep(1e6)"}, {"reset": "ctypes.PyDLL(None).sleep(1000)"}], ids=str
)
def test_a_hanging_call_is_named_with_its_place_at_the_limit(
    place: Mapping[str, str], tmp_path: Path
) -> None:
    write_mine(tmp_path, **place)
    with Command("train", "mine:Mine-v0", "--env-timeout-s", "2", cwd=tmp_path) as running:
        assert running.wait(20) == ExitStatus.ENVIRONMENT_BROKEN
        assert all(word in running.error_lines[-1] for word in ("'mine:Mine-v0'", "2 s", "--env-timeout-s"))
        assert "mine.py" in running.err, "the line that hangs"
        assert_nothing_left(running)
        assert files(tmp_path) == {"mine.py"}


def test_an_environment_that_is_busy_at_first_is_retried_and_a_wild_one_trains(tmp_path: Path) -> None:
    """Its spaces are stored, so that a host without the environment can export the policy."""
    write_mine(
        tmp_path, init=f"assert not os.path.exists('busy'), 'no licence'; {_WILD}", reset="os.chdir('/')"
    )
    (tmp_path / "busy").touch()
    with Command(
        "serial", "mine:Mine-v0", *_SMALL, "--total-steps", "256", "--json", cwd=tmp_path
    ) as running:
        running.wait_for_output("no licence")
        (tmp_path / "busy").unlink()
        assert running.wait(40) == ExitStatus.DONE, running.err
        assert running.err.count("in __init__") == 1
        assert running.summary()["reason"] == "total_steps"
        assert_nothing_left(running)
    assert (tmp_path / "runs" / "mine" / "summary.json").exists()
    (tmp_path / "mine.py").unlink()
    with Command("export", "runs/mine", "--to", "out", "--checkpoint", "last", cwd=tmp_path) as running:
        assert running.wait(20) == ExitStatus.DONE, running.err
    assert (tmp_path / "out" / "policy.json").exists()


def test_a_module_with_a_name_of_ours_is_refused_by_name(tmp_path: Path) -> None:
    write_mine(tmp_path)
    (tmp_path / "workers.py").write_text("")
    with Command("serial", "mine:Mine-v0", cwd=tmp_path) as running:
        assert running.wait(20) == ExitStatus.CONFIGURATION
        assert f"{tmp_path / 'workers.py'} has the name" in running.error_lines[-1]
        assert files(tmp_path) == {"mine.py", "workers.py"}


def test_a_run_that_is_stopped_while_a_reset_hangs_prints_its_summary(tmp_path: Path) -> None:
    write_mine(
        tmp_path,
        init="self.resets = 0",
        reset="self.resets += 1; self.resets == 5 and (open('hangs', 'w'), time.sleep(1e6))",
    )
    with Command("serial", "mine:Mine-v0", *_SMALL, "--json", cwd=tmp_path) as running:
        wait(running, (tmp_path / "hangs").exists)
        began = time.monotonic()
        running.send(signal.SIGTERM)
        assert running.wait(10) == ExitStatus.TERMINATED, running.err
        assert time.monotonic() - began < 5 * PATIENCE
        summary = running.summary()
        assert (summary["reason"], summary["updates"]) == ("stopped", 2)
        assert_nothing_left(running)
    assert list((tmp_path / "runs" / "mine" / "checkpoints").glob("checkpoint-*.pt"))


@pytest.mark.parametrize(
    ("init", "reset"),
    [
        ("print('aside'); os.write(1, b'below')", "print('aside')"),
        ("sys.stdout.close()", "os.closerange(1, 2)"),
    ],
    ids=["prints", "closes"],
)
def test_output_of_the_environment_does_not_mix_with_the_answer_on_standard_output(
    init: str, reset: str, tmp_path: Path
) -> None:
    write_mine(tmp_path, init=init, reset=reset)
    with Command(
        "serial", "mine:Mine-v0", *_SMALL, "--total-steps", "256", "--json", cwd=tmp_path
    ) as running:
        assert running.wait(40) == ExitStatus.DONE, running.err
        (line,) = running.out.splitlines()
        assert json.loads(line)["reason"] == "total_steps"
        assert ("aside" in running.err, "below" in running.err) == ("aside" in init, "below" in init)


def test_a_run_continues_when_the_reader_of_its_output_ends(tmp_path: Path) -> None:
    program = ("-c", "import os, sys; os.execvp('sh', ['sh', '-c', sys.argv[1]])")
    line = [sys.executable, "-m", "ops", "serial", "CartPole-v1", *_SMALL, "--total-steps", "256"]
    with Command(f"{shlex.join(line)} | head -n 1", program=program, cwd=tmp_path) as running:
        assert running.wait(40) == ExitStatus.DONE
        assert len(running.out.splitlines()) == 1
    assert (tmp_path / "runs" / "mine" / "summary.json").exists()
    assert list((tmp_path / "runs" / "mine" / "checkpoints").glob("checkpoint-*.pt"))
