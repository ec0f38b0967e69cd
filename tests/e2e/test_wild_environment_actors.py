"""Fleets whose environments leave threads and simulators behind, replace signal handlers, hang and crash."""

import signal
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, assert_nothing_left

_MODULE = """
import ctypes, os, signal, subprocess, sys, threading, time
import gymnasium, numpy

def simulator():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        self.steps = 0
        if os.environ["DPPO_ROLE"] in ("actor", "evaluator"):
            self.begin()
    def begin(self):
        pass
    def act(self):
        pass
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        time.sleep(0.002)
        if os.environ["DPPO_ROLE"] == "actor":
            self.act()
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}
CODE
gymnasium.register("Mine-v0", entry_point=Mine, max_episode_steps=20)
"""
_SMALL = (
    *("--envs-per-actor", "1", "--rollout-steps", "8", "--network.hidden", "8", "--vectorization", "sync"),
    *("--ppo.batch-steps", "32", "--ppo.minibatch-size", "16"),
)


def fleet(directory: Path, code: str, *arguments: str) -> Command:
    """A fleet whose environment's class ends with these lines."""
    lines = "".join(f"    {line}\n" for line in code.strip().splitlines())
    (directory / "mine.py").write_text(_MODULE.replace("CODE\n", lines))
    return Command("train", "mine:Mine-v0", *_SMALL, *arguments, "--json", cwd=directory)


def test_replaced_signal_handlers_threads_and_simulators_do_not_delay_the_end(tmp_path: Path) -> None:
    code = """
def begin(self):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    threading.Thread(target=time.sleep, args=(86400,)).start()
    simulator(); daemon()
"""
    with fleet(tmp_path, code, "--actors", "1") as command:
        command.wait_for_output("training: ", 60)
        assert command.stop(10) == ExitStatus.TERMINATED
        assert_nothing_left(command)
        (directory,) = (tmp_path / "runs").iterdir()
        log = (directory / "logs" / "supervisord.log").read_text()
        assert "stopped: actor_000 (exit status" in log  # it was not killed
        assert "stopped: evaluator (exit status" in log


def test_processes_of_a_hanging_step_are_ended_and_crashes_in_one_slot_do_not_end_the_run(
    tmp_path: Path,
) -> None:
    """Slot 1 hangs once, slot 0 crashes again and again, slot 2 samples, slowly at first."""
    hung, back = tmp_path / "hung", tmp_path / "back"
    code = f"""
def act(self):
    slot, hung, back = os.environ["DPPO_SLOT"], {str(hung)!r}, {str(back)!r}
    if self.steps == 20 and slot == "1" and os.path.exists(hung):
        open(back, "w").close()
    elif self.steps == 20 and slot == "1":
        open(hung, "w").close()
        simulator(); daemon()
        time.sleep(600)
    if self.steps == 20 and slot == "0":
        simulator(); daemon()
        ctypes.string_at(0)
    if slot == "2" and not os.path.exists(back):
        time.sleep(0.05)
"""
    more = ("--actors", "3", "--env-timeout-s", "3", "--total-steps", "4000")
    with fleet(tmp_path, code, *more) as command:
        assert command.wait(90) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert_nothing_left(command)
    assert summary["reason"] == "total_steps"
    first, second = sorted(text for text in summary["warnings"] if text.startswith("actor"))[:2]
    assert first.startswith("actor_000 ended")
    assert "SIGSEGV: Segmentation fault, in string_at" in first
    assert second.startswith("actor_001 ended once by its own fault: status 70")
    assert "did not answer" in second
    run_dir = Path(summary["run_dir"])
    assert "Segmentation fault" in (run_dir / "logs" / "actor_000.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda value: value.name)
def test_a_killed_actor_restarts_and_its_simulators_are_ended(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
def act(self):
    if self.steps == 20 and not os.path.exists({str(tmp_path / "killed")!r}):
        open({str(tmp_path / "killed")!r}, "w").close()
        simulator(); daemon()
        os.kill(os.getpid(), {number.value})
"""
    with fleet(tmp_path, code, "--actors", "1", "--total-steps", "600") as command:
        assert command.wait(60) == ExitStatus.DONE, command.err
        summary = command.summary()
        assert_nothing_left(command)
    log = (Path(summary["run_dir"]) / "logs" / "actor_000.log").read_text()
    assert f"killed by {number.name}" in log
    assert "boot 2" in log
