"""A trained policy can be watched, exported, and continued in another run."""

import csv
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imageio import v3

from dppo_redis.artefacts.best_policy import keep_best
from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.reports import Evaluation
from ops.fleet.run_directory import RunDirectory, prepare
from tests.e2e.support import Command
from tests.factories import describe, make_config, make_model, make_weights
from workers.seeding import evaluation_seeds

NO_DISPLAY = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": ""}
WINDOW = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}


def make_run(directory: Path, **knobs: Any) -> Path:
    """The directory of a run with an untrained policy, so that episodes are short."""
    config = make_config(**{"env_id": "CartPole-v1", **knobs})
    spec = describe(config).spec
    directory.mkdir()
    prepare(RunDirectory("kept", directory), config, resume=False)
    keep_best(directory, make_weights(spec, make_model(spec)), Evaluation(1, 0, 0, 0, 9.0, 0.0, 9.0, 1))
    return directory


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("keeping") / "run", frame_stack=2)


def finish(command: Command, status: int = ExitStatus.DONE) -> str:
    """Wait for the command's success; returns its standard output."""
    assert command.wait(60) == status, command.err
    return command.out


def episodes(out: str) -> list[tuple[float, int]]:
    """Return and length of each episode in this output."""
    found = re.findall(r"^episode \d+: return (\S+), (\d+) steps$", out, re.MULTILINE)
    return [(float(total), int(length)) for total, length in found]


# imageio_ffmpeg leaves the pipes of a video to the garbage collector.
READS_FILMS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@READS_FILMS
@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_a_video_shows_every_step_of_every_episode(run_dir: Path, name: str, tmp_path: Path) -> None:
    arguments = ["enjoy", str(run_dir), "--video", name, "--episodes", "2"]
    with Command(*arguments, cwd=tmp_path, environment=NO_DISPLAY) as command:
        out = finish(command)
        assert command.error_lines == []
    lengths = [length for _, length in episodes(out)]
    assert len(lengths) == 2
    assert f"wrote {name}: {sum(lengths) + 2} frames, 50 per second" in out
    pictures = v3.imread(tmp_path / name)
    assert pictures.shape[1:] == (400, 600, 3)
    if name == "film.mp4":
        assert len(pictures) == sum(lengths) + 2
    assert (pictures[0] < 50).all(axis=-1).sum() > 500  # the black cart
    assert np.abs(pictures[0].astype(int) - pictures[-1]).max() > 100  # it moves


def test_a_window_shows_the_episodes(run_dir: Path) -> None:
    arguments = ["enjoy", str(run_dir), "--episodes", "2", "--fps", "500", "--stochastic"]
    with Command(*arguments, cwd=run_dir, environment=WINDOW) as command:
        assert len(episodes(finish(command))) == 2


def test_a_closed_window_ends_the_command_with_success(tmp_path: Path) -> None:
    closing = make_run(tmp_path / "run", wrappers=("tests.envs.rendering:Closing",))
    with Command("enjoy", str(closing), "--episodes", "500", cwd=tmp_path, environment=WINDOW) as command:
        assert episodes(finish(command)) == []
        assert command.error_lines == []


@READS_FILMS
def test_ctrl_c_leaves_a_complete_video(run_dir: Path, tmp_path: Path) -> None:
    arguments = ["enjoy", str(run_dir), "--video", "film.mp4", "--episodes", "10000"]
    with Command(*arguments, cwd=tmp_path, environment=NO_DISPLAY) as command:
        command.wait_for_output("episode 2", 60)
        command.send(signal.SIGINT)
        out = finish(command, ExitStatus.INTERRUPTED)
        assert command.error_lines == []
    (frames,) = re.findall(r"wrote film\.mp4: (\d+) frames", out)
    assert len(v3.imread(tmp_path / "film.mp4")) == int(frames)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ([], "no display"),
        (["--video", "film.avi"], "the name must end in .mp4 or .gif"),
        (["--video", "gone/film.gif"], "gone"),
        (["--episodes", "0"], "episodes"),
        (["--seed", "-1", "--video", "film.gif"], "seed"),
        (["--fps", "0", "--video", "film.gif"], "fps"),
        (["--video", "film.gif", "--checkpoint", "last"], "holds no checkpoint"),
    ],
)
def test_an_environment_that_cannot_be_shown_is_refused_in_one_line(
    run_dir: Path, arguments: list[str], cause: str
) -> None:
    with Command("enjoy", str(run_dir), *arguments, cwd=run_dir, environment=NO_DISPLAY) as command:
        finish(command, ExitStatus.CONFIGURATION)
        (line,) = command.error_lines
    assert cause in line


def test_an_environment_without_rendering_is_refused_by_name(tmp_path: Path) -> None:
    blind = make_run(tmp_path / "run", env_id="tests.envs:Terminating-v0")
    with Command("enjoy", str(blind), "--video", "film.gif", cwd=tmp_path) as command:
        finish(command, ExitStatus.CONFIGURATION)
        (line,) = command.error_lines
    assert "tests.envs:Terminating-v0" in line
    assert "rgb_array" in line


SCRIPT = """
import gymnasium
from dppo_redis.artefacts.exports import load_export
from dppo_redis.policy.player import Player

env = gymnasium.make("CartPole-v1")
player = Player(load_export("taken"))
observation, _ = env.reset(seed={seed})
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(player.act(observation))
    total, over = total + reward, terminated or truncated
print(total)
"""


def test_an_export_plays_the_same_episodes_in_a_script_of_the_user(run_dir: Path, tmp_path: Path) -> None:
    with Command("export", str(run_dir), "--to", "taken", "--onnx", "no", cwd=tmp_path) as command:
        finish(command)
    assert {file.name for file in (tmp_path / "taken").iterdir()} == {"policy.json", "policy.safetensors"}
    with Command("enjoy", str(run_dir), "--video", "film.gif", "--episodes", "1", cwd=tmp_path) as command:
        ((expected, _),) = episodes(finish(command))
    (tmp_path / "play.py").write_text(SCRIPT.format(seed=evaluation_seeds(0, 0, 1)[0]))
    with Command(cwd=tmp_path, program=["play.py"]) as script:
        assert float(finish(script)) == expected
    results = []
    for place in ([str(run_dir)], ["taken"], [str(run_dir), "--checkpoint", "taken"]):
        with Command("evaluate", *place, "--episodes", "5", "--json", cwd=tmp_path) as command:
            finish(command)
            results.append(command.summary()["return_mean"])
    assert len(set(results)) == 1


def test_files_are_overwritten_only_with_overwrite(run_dir: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("keep me")
    strange = tmp_path / "strange" / "policy.json"
    strange.parent.mkdir()
    strange.write_text('{"of": "another program"}')
    for target, more, status, cause in (
        ("foreign", [], ExitStatus.CONFIGURATION, "other files than those of an export"),
        ("strange", ["--overwrite"], ExitStatus.CONFIGURATION, "other files than those of an export"),
        ("new", [], ExitStatus.DONE, ""),
        ("new", [], ExitStatus.CONFIGURATION, "--overwrite"),
        ("new", ["--overwrite"], ExitStatus.DONE, ""),
    ):
        with Command("export", str(run_dir), "--to", target, "--onnx", "no", *more, cwd=tmp_path) as command:
            finish(command, status)
            assert cause in command.err
    assert strange.read_text() == '{"of": "another program"}'


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run whose policy balances the pole."""
    place = tmp_path_factory.mktemp("good")
    arguments = ["CartPole-v1", "--target-return", "475", "--run-dir", "good", "--total-steps", "100000"]
    with Command("serial", *arguments, cwd=place) as command:
        finish(command)
        yield place / "good"


def test_a_fleet_starts_with_the_policy_of_another_run_and_resumes_without_that_run(
    good: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(good, source)
    arguments = ["CartPole-v1", "--run-dir", "new", "--total-steps", "4000", "--init-from", "source"]
    with Command("train", *arguments, "--actors", "1", "--json", cwd=tmp_path) as command:
        finish(command)
        assert command.summary()["return_mean"] > 300  # a fresh network balances for about 10 steps
    log = (tmp_path / "new/logs/learner.log").read_text()
    assert f"starting from the policy and value network of {source}/checkpoints/checkpoint-" in log
    rows = list(csv.DictReader((tmp_path / "new/metrics.csv").read_text().splitlines()))
    assert int(rows[0]["trained_steps"]) < 4000  # the steps of the other run do not count
    assert not rows[0]["return_mean"] or float(rows[0]["return_mean"]) > 100
    shutil.rmtree(source)
    with Command("train", "--resume", "--run-dir", "new", "--total-steps", "8000", cwd=tmp_path) as command:
        finish(command)
    assert "resuming at update" in (tmp_path / "new/logs/learner.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["train", "CartPole-v1", "--network.hidden", "32"], "[32]"),
        (["serial", "Acrobot-v1"], "observation"),
        (["serial", "CartPole-v1", "--frame-stack", "2"], "frame_stack: 2 != 1"),
        (
            ["train", "CartPole-v1", "--init-from", "/"],
            "/ is no run's directory, no checkpoint and no export",
        ),
        (["train", "CartPole-v1", "--run-dir", "{good}", "--overwrite"], "choose another --run-dir"),
    ],
)
def test_an_initial_policy_that_does_not_fit_is_refused_before_files_are_written(
    good: Path, arguments: list[str], cause: str, tmp_path: Path
) -> None:
    command_name, *rest = [argument.format(good=good) for argument in arguments]
    with Command(command_name, "--init-from", str(good), *rest, cwd=tmp_path) as command:
        finish(command, ExitStatus.CONFIGURATION)
        (line,) = command.error_lines
    assert "init_from" in line
    assert cause in line
    assert list(tmp_path.iterdir()) == []
    assert (good / "best_policy.msgpack").exists()
