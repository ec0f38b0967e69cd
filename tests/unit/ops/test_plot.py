"""`plot`: curves of several runs."""

from pathlib import Path

import numpy as np
import pytest

from dppo_redis.errors import ConfigurationError
from ops.commands.plot import main, mean_and_spread, read_panels
from ops.fleet.run_directory import RunDirectory, prepare
from tests.factories import make_config

PNG = b"\x89PNG"


def make_run(
    path: Path,
    seed: int,
    returns: list[float],
    sampling: str = "a fleet",
    first_step: int = 100,
    **knobs: object,
) -> str:
    path.mkdir(parents=True)
    config = make_config(seed=seed, **{"env_id": "CartPole-v1", **knobs})
    prepare(RunDirectory(path.name, path), config, resume=False, sampling=sampling)
    rows = [f"{first_step + 100 * i},{value}" for i, value in enumerate(returns)]
    (path / "metrics.csv").write_text("\n".join(["settled_steps,return_mean", *rows]) + "\n")
    return str(path)


def sizes(directories: list[Path]) -> dict[str, dict[str, int]]:
    """The number of runs of each line, by panel and label."""
    panels = read_panels(directories)
    return {env: {label: len(of) for label, of in lines.items()} for env, lines in panels.items()}


def test_mean_and_spread_are_those_of_the_steps_that_all_runs_reached() -> None:
    one = (np.array([0.0, 100.0]), np.array([0.0, 100.0]))
    other = (np.array([50.0, 200.0]), np.array([150.0, 300.0]))
    steps, mean, spread = mean_and_spread([one, other])
    assert (steps[0], steps[-1]) == (50, 100)
    assert (mean[0], mean[-1]) == (100, 150)  # of 50 and 150; of 100 and 200
    assert spread == pytest.approx(np.full(len(steps), 50))


def test_runs_are_drawn_into_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / f"run{seed}", seed, [10, 20, 30.5]) for seed in (1, 2)]
    output = tmp_path / "figures" / "both.png"
    assert main([*runs, "--output", str(output)]) == 0
    assert output.read_bytes().startswith(PNG)
    assert str(output) in capsys.readouterr().out


@pytest.mark.parametrize("returns", [[], None])
def test_a_directory_that_cannot_be_drawn_is_named(tmp_path: Path, returns: list[float] | None) -> None:
    path = tmp_path / "run"
    arguments = [make_run(path, 1, returns)] if returns is not None else [str(tmp_path)]
    with pytest.raises(ConfigurationError, match=r"no finished episode|holds no run"):
        main([*arguments, "--output", str(tmp_path / "x.png")])


def test_runs_of_one_setting_are_one_line_and_each_directory_counts_once(tmp_path: Path) -> None:
    first, second = (Path(make_run(tmp_path / f"run{seed}", seed, [10, 20])) for seed in (1, 2))
    link = tmp_path / "link"
    link.symlink_to(first)
    assert sizes([first, second, link, first]) == {"CartPole-v1": {"seeds 1, 2": 2}}


@pytest.mark.parametrize(
    ("difference", "labels"),
    [
        ({"actors": 7}, {"actors 2": 1, "actors 7": 1}),
        (
            {"sampling": "one process, age 0"},
            {"sampled by a fleet": 1, "sampled by one process, age 0": 1},
        ),
    ],
)
def test_other_settings_are_lines_of_their_own_also_under_one_name(
    tmp_path: Path, difference: dict[str, object], labels: dict[str, int]
) -> None:
    one = Path(make_run(tmp_path / "a" / "same", 1, [10, 20]))
    other = Path(make_run(tmp_path / "b" / "same", 1, [10, 20], **difference))  # type: ignore[arg-type]
    assert sizes([one, other]) == {"CartPole-v1": labels}


def test_labels_name_the_differing_settings_also_for_several_runs(tmp_path: Path) -> None:
    knobs: list[dict[str, object]] = [
        {"ppo": {"learning_rate": 0.001}},
        {"ppo": {"learning_rate": 0.01}, "actors": 3},
    ]
    runs = [
        Path(make_run(tmp_path / f"run{i}{seed}", seed, [10, 20], **of))  # type: ignore[arg-type]
        for i, of in enumerate(knobs)
        for seed in (1, 2)
    ]
    wanted = {"actors 2, ppo.learning_rate 0.001": 2, "actors 3, ppo.learning_rate 0.01": 2}
    assert sizes(runs) == {"CartPole-v1": wanted}


def test_each_environment_has_a_panel_of_its_own(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", 1, [10, 20])
    others = [make_run(tmp_path / f"pole{seed}", seed, [-9, -5], env_id="Acrobot-v1") for seed in (3, 4)]
    runs = [Path(run) for run in (one, *others)]
    assert sizes(runs) == {"CartPole-v1": {"one": 1}, "Acrobot-v1": {"seeds 3, 4": 2}}
    assert main([one, *others, "--output", str(tmp_path / "panels.png")]) == 0
    assert (tmp_path / "panels.png").read_bytes().startswith(PNG)


def test_runs_without_a_step_in_common_are_lines_of_their_own(tmp_path: Path) -> None:
    runs = [
        Path(make_run(tmp_path / f"run{i}", i, [10, 20], first_step=first)) for i, first in ((1, 0), (2, 900))
    ]
    assert sizes(runs) == {"CartPole-v1": {"run1": 1, "run2": 1}}


def test_directories_without_a_run_or_a_curve_are_named_and_the_others_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = make_run(tmp_path / "good", 1, [10, 20])
    young, begun = make_run(tmp_path / "young", 2, []), make_run(tmp_path / "begun", 3, [1])
    (tmp_path / "begun" / "metrics.csv").unlink()  # killed before its first update
    (tmp_path / "curves.png").write_bytes(PNG)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    others = [young, begun, *(str(tmp_path / name) for name in ("curves.png", "damaged", "gone"))]
    output = tmp_path / "out.png"
    assert main([*others, good, "--output", str(output)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [path in line for path, line in zip(others, lines, strict=True)] == [True] * 5
    assert output.read_bytes().startswith(PNG)


def test_without_a_curve_no_picture_is_written(tmp_path: Path) -> None:
    (tmp_path / "curves.png").write_bytes(PNG)
    young = make_run(tmp_path / "young", 2, [])
    with pytest.raises(ConfigurationError, match="none of these 2 can be drawn"):
        main([young, str(tmp_path / "curves.png"), "--output", str(tmp_path / "out.png")])
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("name", ["curves", "curves.xyz"])
def test_a_picture_of_another_format_is_refused(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run", 1, [10, 20])
    with pytest.raises(ConfigurationError, match=r"end in \.png, \.svg, \.pdf"):
        main([run, "--output", str(tmp_path / name)])
