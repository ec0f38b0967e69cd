"""A trained policy can be played with only the run's directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a short run of a fleet."""
    place = tmp_path_factory.mktemp("evaluating")
    with Command(
        "train", "CartPole-v1", "--actors", "1", "--total-steps", "20000", "--json", cwd=place
    ) as command:
        assert command.wait(60) == ExitStatus.DONE
        yield Path(command.summary()["run_dir"])


@pytest.mark.parametrize("checkpoint", ["best", "last", "file"])
def test_a_policy_plays_better_than_chance_from_every_kind_of_file(run_dir: Path, checkpoint: str) -> None:
    if checkpoint == "file":
        checkpoint = str(max((run_dir / "checkpoints").glob("*.pt")))
    arguments = [str(run_dir), "--checkpoint", checkpoint, "--episodes", "10", "--json"]
    with Command("evaluate", *arguments, cwd=run_dir) as command:
        assert command.wait(30) == ExitStatus.DONE
        result = command.summary()
    assert result["episodes"] == 10
    assert result["return_mean"] > 100  # a random policy balances for about 22 steps
    low, high = result["interval"]
    assert low <= result["return_mean"] <= high
    assert result["trained_steps"] > 0


def test_the_same_seed_plays_the_same_episodes_also_when_actions_are_drawn(run_dir: Path) -> None:
    lines = []
    for seed in ("1", "1", "2"):
        arguments = [str(run_dir), "--stochastic", "--seed", seed, "--episodes", "5", "--checkpoint", "last"]
        with Command("evaluate", *arguments, cwd=run_dir) as command:
            assert command.wait(30) == ExitStatus.DONE
            lines.append(command.out)
    assert "5 episodes, stochastic" in lines[0]
    assert lines[0] == lines[1] != lines[2]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["{run}", "--checkpoint", "missing.pt"], "missing.pt"),
        (["{run}", "--episodes", "0"], "episodes"),
        (["{run}", "--seed", "-1"], "seed"),
        (["/"], "holds no run"),
    ],
)
def test_an_unplayable_directory_is_refused_in_one_line(
    run_dir: Path, arguments: list[str], cause: str
) -> None:
    filled = [argument.format(run=run_dir) for argument in arguments]
    with Command("evaluate", *filled, cwd=run_dir) as command:
        assert command.wait(30) != ExitStatus.DONE
        (line,) = command.error_lines
    assert cause in line
