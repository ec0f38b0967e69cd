"""Curves of several runs."""

from pathlib import Path

import numpy as np
import pytest

from dppo_redis.errors import ConfigurationError
from ops.compare import main, mean_and_spread
from ops.run_directory import RunDirectory, prepare
from tests.factories import make_config

PNG = b"\x89PNG"


def make_run(path: Path, seed: int, returns: list[float]) -> str:
    path.mkdir()
    prepare(RunDirectory(path.name, path), make_config(env_id="CartPole-v1", seed=seed), resume=False)
    rows = [f"{100 * (i + 1)},{value}" for i, value in enumerate(returns)]
    (path / "metrics.csv").write_text("\n".join(["env_steps,return_mean", *rows]) + "\n")
    return str(path)


def test_mean_and_spread_are_those_of_the_steps_that_all_runs_reached() -> None:
    one = (np.array([0.0, 100.0]), np.array([0.0, 100.0]))
    other = (np.array([50.0, 200.0]), np.array([150.0, 300.0]))
    steps, mean, spread = mean_and_spread([one, other])
    assert (steps[0], steps[-1]) == (50, 100)
    assert (mean[0], mean[-1]) == (100, 150)  # of 50 and 150; of 100 and 200
    assert spread == pytest.approx(np.full(len(steps), 50))


def test_runs_become_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / f"run{seed}", seed, [10, 20, 30.5]) for seed in (1, 2)]
    output = tmp_path / "figures" / "both.png"
    assert main([*runs, "--output", str(output)]) == 0
    assert output.read_bytes().startswith(PNG)
    assert str(output) in capsys.readouterr().out


@pytest.mark.parametrize("returns", [[], None])
def test_what_cannot_be_drawn_is_named(tmp_path: Path, returns: list[float] | None) -> None:
    path = tmp_path / "run"
    arguments = [make_run(path, 1, returns)] if returns is not None else [str(tmp_path)]
    with pytest.raises(ConfigurationError, match=r"no finished episode|holds no run"):
        main([*arguments, "--output", str(tmp_path / "x.png")])
