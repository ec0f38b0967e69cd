"""How the user names a run: by its directory or its name in runs/, with a flag or as a positional
argument."""

import os
from pathlib import Path

import pytest

from dppo_redis.command_line.run_name import one_run_name
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.service.arguments import parse_arguments
from ops.commands.evaluate import EvaluateOptions
from ops.commands.plot import PlotOptions
from ops.commands.status import StatusOptions
from ops.fleet.run_directory import choose, runs_here
from ops.policies.which_run import find_run_directories, find_run_directory, not_a_run

RUNS = Path("runs")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in runs/; `walker` is the newer one."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("walker", "hopper")):
        (RUNS / name).mkdir(parents=True)
        (RUNS / name / "run.json").write_text(f'{{"run": "{name}"}}')
        os.utime(RUNS / name / "run.json", (1e9 - age, 1e9 - age))
    (RUNS / "empty").mkdir()


def test_runs_are_those_directories_that_hold_one_the_newest_first() -> None:
    assert runs_here() == ["walker", "hopper"]


@pytest.mark.parametrize(
    "words",
    [["runs/hopper"], ["hopper"], ["--run", "hopper"], ["--run-dir", "runs/hopper"], ["--run_dir=hopper"]],
)
def test_a_run_is_named_by_its_directory_or_its_name_in_either_form(words: list[str]) -> None:
    options = parse_arguments(EvaluateOptions, words, "dppo-redis evaluate")
    assert find_run_directory(options.run_dir, options.run) == RUNS / "hopper"


def test_a_directory_here_comes_before_a_run_of_this_name() -> None:
    Path("hopper").mkdir()
    assert find_run_directory(Path("hopper"), None) == Path("hopper")


@pytest.mark.parametrize(
    ("placed", "run", "says"),
    [
        (None, None, "name a run: its directory, or --run NAME; runs/ has: walker, hopper (newest first)"),
        ("hoper", None, "hoper holds no run and no export; runs/ has: hopper, walker (did you mean hopper?)"),
        (
            None,
            "hoper",
            "runs/hoper holds no run and no export; runs/ has: hopper, walker (did you mean hopper?)",
        ),
        ("hopper", "walker", "RUN_DIR (hopper) and --run walker: name one of them"),
    ],
)
def test_a_refusal_lists_the_existing_runs(placed: str | None, run: str | None, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_run_directory(None if placed is None else Path(placed), run)
    assert str(caught.value) == says


def test_several_runs_are_found_and_unknown_names_are_kept() -> None:
    options = parse_arguments(PlotOptions, ["hopper", "runs/walker", "nowhere"], "dppo-redis plot")
    assert find_run_directories(options.run_dirs) == (RUNS / "hopper", RUNS / "walker", Path("nowhere"))
    with pytest.raises(ConfigurationError, match=r"at least one run.*runs/ has: walker, hopper"):
        find_run_directories(())


def test_a_run_on_a_server_is_named_as_a_word_or_by_a_flag() -> None:
    for words in (["a"], ["--run", "a"], ["a", "--run", "a"]):
        options = parse_arguments(StatusOptions, words, "dppo-redis status")
        assert one_run_name(options.name, options.run) == "a"
    assert one_run_name(None, None) is None
    with pytest.raises(ConfigurationError, match=r"RUN \(a\) and --run b"):
        one_run_name("a", "b")


@pytest.mark.parametrize(
    ("env_id", "run", "says"),
    [
        ("", None, "--resume needs --run-dir DIR or --run NAME; runs/ has: walker, hopper (newest first)"),
        ("hopper", None, "--resume takes no name: write --resume --run hopper"),
        ("", "hoper", "holds no run to resume; runs/ has: hopper, walker (did you mean hopper?)"),
    ],
)
def test_a_resume_without_a_run_lists_the_existing_runs(env_id: str, run: str | None, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        choose(RunConfig(env_id=env_id), run, None, resume=True)
    assert str(caught.value).endswith(says)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("checkpoints", "is a part of a run: pass the run's directory, runs/hopper"),
        (
            "best_policy.msgpack",
            "runs/hopper, and this file with --checkpoint runs/hopper/best_policy.msgpack",
        ),
    ],
)
def test_a_part_of_a_run_is_refused_with_the_runs_directory(part: str, says: str) -> None:
    path = Path("runs", "hopper", part)
    path.mkdir() if part == "checkpoints" else path.touch()
    assert str(not_a_run(path)).endswith(says)


@pytest.mark.parametrize("run", [None, "hopper"])
@pytest.mark.parametrize("has_folder", [True, False])
def test_a_resume_without_any_run_names_the_next_step(
    run: str | None, has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "runs" if has_folder else elsewhere).mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigurationError) as caught:
        choose(RunConfig(), run, None, resume=True)
    assert "there is no run in runs/ here: leave out --resume to start one" in str(caught.value)
