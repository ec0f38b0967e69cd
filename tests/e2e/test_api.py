"""The Python API in scripts, threads, event loops and notebooks. It starts real fleets and ends them."""

import signal
import textwrap
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import ACTOR, SUPERVISORD, Command, assert_nothing_left

# Fast episodes of CartPole, small updates: a budget of 1,000 steps takes a second.
SMALL = """dict(
    actors=1, envs_per_actor=4, vectorization="sync", network={"hidden": [8]},
    ppo={"batch_steps": 256, "minibatch_size": 128, "update_epochs": 1},
    evaluation={"episodes": 2, "interval_s": 0.0, "max_share": 1.0},
)"""
# Five milliseconds a step: trains longer than a test takes.
SLOW = """dict(
    actors=1, envs_per_actor=2, rollout_steps=8, vectorization="sync", network={"hidden": [8]},
    env_kwargs={"ms": 5}, ppo={"batch_steps": 16, "minibatch_size": 16}, evaluation={"enabled": False},
)"""
HEAD = f"""
import time
import dppo_redis

SMALL = {SMALL}
SLOW = {SLOW}

def until(condition):
    while not condition():
        time.sleep(0.02)
"""
SLOW_ID = "tests.envs:Slow-v0"


def program(place: Path, text: str) -> Command:
    """Run a script of the user."""
    (place / "script.py").write_text(HEAD + textwrap.dedent(text))
    return Command(cwd=place, program=["-W", "error", "script.py"])


def finish(command: Command, status: int = ExitStatus.DONE) -> list[str]:
    """Wait for its end; returns its lines. Checks that it left no process and no file."""
    assert command.wait(60) == status, command.err
    assert_nothing_left(command)
    return command.out.splitlines()


def test_a_program_trains_reads_the_status_waits_and_plays_with_the_best_policy(tmp_path: Path) -> None:
    script = """
        import gymnasium

        if __name__ == "__main__":
            run = dppo_redis.train("CartPole-v1", total_steps=1000, run="mine", **SMALL)
            begun = run.status()
            assert (begun.run, begun.learner.budget_steps, begun.control.state) == ("mine", 1000, "run")
            until(lambda: run.status().learner.update)
            summary = run.wait(timeout_s=60)
            ended = run.status()
            assert ended.control.reason == summary.reason == "total_steps"
            assert ended.learner.trained_steps == summary.trained_steps >= 1000
            assert ended.evaluation == summary.evaluation and ended.ledger_summary == summary.ledger
            assert run.stop() == run.wait() == summary
            env = gymnasium.make("CartPole-v1")
            observation, _ = env.reset(seed=1)
            assert env.action_space.contains(run.best_policy().act(observation))
            assert env.action_space.contains(dppo_redis.load(run.directory).act(observation, greedy=False))
            newest = sorted((run.directory / "checkpoints").iterdir())[-1]
            assert dppo_redis.load(newest).trained_steps == summary.trained_steps
            longer = dppo_redis.train(resume=True, run="mine", total_steps=1500)
            assert longer.wait().trained_steps >= 1500
            print(run, longer.name)
    """
    with program(tmp_path, script) as command:
        (line,) = finish(command)
        assert command.err == ""
    assert "mine" in line
    assert "ended (total_steps)" in line
    assert line.endswith(" mine")


def test_a_run_ends_with_its_block_with_stop_and_with_the_program(tmp_path: Path) -> None:
    """Two runs, started by threads that end, without a `__main__` guard, inside an event loop."""
    script = f"""
        import asyncio, signal, threading

        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]

        async def main():
            starts = (asyncio.to_thread(dppo_redis.train, "{SLOW_ID}", run=name, **SLOW) for name in "ab")
            return await asyncio.gather(*starts)

        with asyncio.run(main())[0] as a:
            until(lambda: a.status().ledger_summary.trained and a.status().actors)
            assert a.status().learner.state == "training" and "training" in repr(a)
            try:
                a.wait(0.01)
            except TimeoutError as error:
                print(error)
            try:
                a.best_policy()
            except dppo_redis.NoPolicyError as error:
                print(error)
        print(a.wait().reason, a.status().control)
        assert dppo_redis.load(a.directory).trained_steps == a.wait().trained_steps  # stopped, and saved
        assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
        assert threading.active_count() == 1
    """
    with program(tmp_path, script) as command:
        late, missing, ended = finish(command)
    assert late == "run a has not ended within 0.01 s: it continues"
    assert "run a has no best policy" in missing
    assert "evaluation.enabled is False" in missing
    assert ended == "stopped Control(state='stop', reason='stopped', target_step=None)"
    assert '"reason": "stopped"' in (tmp_path / "runs" / "b" / "summary.json").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_fleet_of_a_killed_program_ends(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C ends the waiting with KeyboardInterrupt; a killed program is noticed."""
    script = f'dppo_redis.train("{SLOW_ID}", run="mine", **SLOW).wait()'
    with program(tmp_path, script) as command:
        command.service(*ACTOR)
        command.service(*SUPERVISORD)
        command.send(number)
        command.wait(30)
        assert_nothing_left(command, 20)
        assert number == signal.SIGKILL or "KeyboardInterrupt" in command.err
    assert '"reason": "stopped"' in (tmp_path / "runs" / "mine" / "summary.json").read_text()


NOTEBOOK = '''
import code
cells = ["""
import gymnasium, dppo_redis
class Mine(gymnasium.Env): ...
gymnasium.register("Mine-v0", Mine)
""", """
try: dppo_redis.train("Mine-v0")
except dppo_redis.ConfigurationError as error: print(error)
""", """
try: dppo_redis.train("CartPole-v1", total_steps=0)
except dppo_redis.ConfigurationError as error: print(error)
""", """
try: dppo_redis.train("No-v0", run_dir="new")
except dppo_redis.ConfigurationError as error: print(error)
""", """
run = dppo_redis.train("CartPole-v1", run="mine", total_steps=10**9, **SMALL)
"""]
console = code.InteractiveConsole({"__name__": "__main__", "SMALL": SMALL})
for cell in cells:
    console.runsource(cell, "<cell>", "exec")
console.runsource("run", "<cell>", "single")
'''


def test_a_notebook_trains_and_its_own_environment_is_refused(tmp_path: Path) -> None:
    with program(tmp_path, NOTEBOOK) as command:
        notebook, budget, unknown, shown = finish(command)
        assert command.err == ""
    assert "'Mine-v0' is defined in this notebook or script" in notebook
    assert '"my_module:Mine-v0"' in notebook
    assert shown.startswith(f"<Run mine in {tmp_path}/runs/mine: ")
    assert not (tmp_path / "new").exists()
    for mistake, arguments in (
        (budget, ("CartPole-v1", "--total-steps", "0")),
        (unknown, ("No-v0", "--run-dir", "new")),
    ):
        with Command("train", *arguments, cwd=tmp_path) as refused:
            assert refused.wait(30) == ExitStatus.CONFIGURATION
            assert refused.error_lines[-1] == f"dppo-redis: {mistake}"


MODULE = """
import sys
import gymnasium

class Changes(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3 if "workers" in sys.argv[0] else 2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}

gymnasium.register("Changes-v0", Changes)
"""


def test_a_failed_run_names_the_cause_and_finds_the_programs_modules(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "changes.py").write_text(MODULE)
    script = """
        import sys
        sys.path.append("lib")
        run = dppo_redis.train("changes:Changes-v0", run="mine", **SMALL)
        try:
            run.wait()
        except dppo_redis.RunFailedError as error:
            print(error)
        print(run.status().control.reason, run)
    """
    with program(tmp_path, script) as command:
        lines = finish(command)
    assert lines[0].startswith("run mine ended with status 78 (logs: ")
    assert any("actor_000 has stopped for good" in line for line in lines[1:-1])
    assert lines[-1].startswith("failed <Run mine")
