"""An environment that always fails ends the run with its cause; the run does not wait for ever."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, assert_nothing_left

_BROKEN = """
import gymnasium, numpy
class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps > 3:
            FAULT
        return numpy.zeros(2, numpy.float32), reward, False, False, {}
    reward = 1.0
gymnasium.register("Broken-v0", entry_point=Broken, max_episode_steps=50)
"""


_NOT_A_NUMBER = "return numpy.zeros(2, numpy.float32), float('nan'), False, False, {}"


def write_module(directory: Path, fault: str) -> list[str]:
    """Write the module; returns arguments that train on its environment."""
    source = _BROKEN.replace("FAULT", fault).replace(", reward,", ", self.reward,")
    (directory / "broken_module.py").write_text(source)
    return ["broken_module:Broken-v0", "--actors", "1", "--envs-per-actor", "1", "--rollout-steps", "8"]


_COMMANDS = {
    "raises": ("train", 'raise RuntimeError("no licence")'),
    "not a number": ("train", _NOT_A_NUMBER),
    "baseline": ("serial", _NOT_A_NUMBER),
}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Command]]:
    """All of them at once: they wait longer than they compute."""
    with ExitStack() as stack:
        started = {}
        for name, (command, fault) in _COMMANDS.items():
            place = tmp_path_factory.mktemp("broken")
            words = (command, *write_module(place, fault), "--json")
            started[name] = stack.enter_context(Command(*words, cwd=place))
        yield started


@pytest.mark.parametrize(
    ("name", "cause"), [("raises", "no licence"), ("not a number", "nonfinite: rewards")]
)
def test_the_run_fails_with_the_cause(commands: Mapping[str, Command], name: str, cause: str) -> None:
    command = commands[name]
    assert command.wait(90) == ExitStatus.FAILED
    assert command.summary()["reason"] == "failed"
    assert cause in command.err
    assert "keeps ending" in command.error_lines[-1]
    assert_nothing_left(command)


def test_the_baseline_fails_with_the_cause(commands: Mapping[str, Command]) -> None:
    command = commands["baseline"]
    assert command.wait(60) == ExitStatus.ENVIRONMENT_BROKEN
    summary = command.summary()
    assert (summary["reason"], summary["refused"]) == ("failed", 10)
    assert "nonfinite: rewards" in command.error_lines[-1]
