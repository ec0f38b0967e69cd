"""`train` works in any directory: with environments in it, and with names that need quotes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, assert_nothing_left

_BUDGET = ("--total-steps", "2048", "--json")
_CORRIDOR = """
import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        self.place = min(9, max(0, self.place + 2 * int(action) - 1))
        return np.array([self.place], np.float32), -1.0, self.place == 9, False, {}


gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=50)
"""


@pytest.fixture(scope="module")
def beside_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """An environment in a module of the working directory, which is not on PYTHONPATH."""
    place = tmp_path_factory.mktemp("user")
    (place / "corridor.py").write_text(_CORRIDOR)
    with Command("train", "corridor:Corridor-v0", *_BUDGET, cwd=place) as command:
        yield command


@pytest.fixture(scope="module")
def in_an_odd_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    place = tmp_path_factory.mktemp("odd") / '100 % of Anna\'s "runs", (2)'
    place.mkdir()
    with Command("train", "CartPole-v1", *_BUDGET, cwd=place) as command:
        yield command


@pytest.fixture(autouse=True)
def _both_at_once(beside_the_user: Command, in_an_odd_place: Command) -> None:
    """The second fleet starts while the first does."""


def test_every_process_finds_an_environment_in_the_working_directory(beside_the_user: Command) -> None:
    assert beside_the_user.wait(45) == ExitStatus.DONE, beside_the_user.err
    summary = beside_the_user.summary()
    assert summary["reason"] == "total_steps"
    assert -50 <= summary["return_mean"] <= -9  # so the evaluator has found it, too
    assert_nothing_left(beside_the_user)


def test_a_directory_with_percent_signs_spaces_and_quotes_works(in_an_odd_place: Command) -> None:
    assert in_an_odd_place.wait(45) == ExitStatus.DONE, in_an_odd_place.err
    logs = Path(in_an_odd_place.summary()["run_dir"]) / "logs"
    assert {"actor_000.log", "actor_001.log", "learner.log"} <= {log.name for log in logs.iterdir()}
    assert_nothing_left(in_an_odd_place)


def test_the_console_command_finds_an_environment_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "corridor.py").write_text(_CORRIDOR)
    # As with pip's script, its own directory is on the path, and the working directory is not.
    script = tmp_path / "bin" / "dppo-redis"
    script.parent.mkdir()
    script.write_text("import sys\nfrom ops.cli import main\nsys.exit(main())\n")
    arguments = ["serial", "corridor:Corridor-v0", *_BUDGET]
    with Command(*arguments, cwd=tmp_path, program=[str(script)]) as serial:
        assert serial.wait(30) == ExitStatus.DONE, serial.err
