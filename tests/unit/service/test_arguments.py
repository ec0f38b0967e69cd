"""Command lines: every mistake is one line with status 78."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.config import RunConfig
from dppo_redis.service.arguments import parse_arguments
from ops.options import TrainOptions, read_options


@dataclass(frozen=True)
class Options:
    """Do something."""

    run: str
    """Name of the run"""
    count: int = 2
    """How many"""
    run_dir: Path | None = None
    """Where"""
    json: bool = False
    """Print JSON"""


def parse(*argv: str, default: Options | None = None) -> Options:
    return parse_arguments(Options, argv, "dppo-redis something", default)


def test_values_take_their_types() -> None:
    options = parse("--run", "a", "--count", "3", "--run-dir", "some where", "--json")
    assert options == Options("a", 3, Path("some where"), True)


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert parse("--run", "a") == Options("a")
    assert parse(default=Options("b", 7)) == Options("b", 7)
    assert parse("--count", "1", default=Options("b", 7)) == Options("b", 1)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--run", "a", "--cuont", "3"], "--count"),
        (["--run", "a", "--count", "three"], "three"),
        ([], "--run"),
        (["--run"], "--run"),
        (["--run", "a", "stray"], "stray"),
    ],
    ids=["a typo", "a bad value", "a missing option", "a missing value", "a stray word"],
)
def test_a_mistake_is_one_line_that_names_it_and_the_help(argv: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(*argv)
    message = str(caught.value)
    assert expected in message
    assert "dppo-redis something --help" in message
    assert "\n" not in message
    assert not set(message) & set("╭╮╰╯│─")


def test_a_mistake_has_the_status_of_a_configuration_error() -> None:
    assert ConfigurationError("x").exit_status is ExitStatus.CONFIGURATION
    assert int(ExitStatus.CONFIGURATION) == 78


def test_a_mistake_prints_nothing_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError):
        parse("--nothing")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_help_is_printed_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code in (0, None)
    shown = capsys.readouterr().out
    assert "dppo-redis something" in shown
    assert "Name of the run" in shown
    assert "--no-json" not in shown


def test_a_message_never_shows_the_password_of_a_url() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_arguments(Options, ["--redsi", "redis://me:hunter2@here:6379", "x?ssl_password=hunter2"], "p")
    assert "redsi" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_arguments_of_the_environment_are_plain_values_of_any_kind() -> None:
    words = ["desc", "['SF', 'FG']", "p", "{'a': 1.5}", "slip", "false", "n", "3", "mode", "rgb_array"]
    config = parse_arguments(RunConfig, ["CartPole-v1", "--env-kwargs", *words], "dppo-redis serial")
    assert config.env_kwargs == {
        "desc": ["SF", "FG"],
        "p": {"a": 1.5},
        "slip": False,
        "n": 3,
        "mode": "rgb_array",
    }


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_message_has_no_frame_on_any_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    with pytest.raises(ConfigurationError) as caught:
        parse("--run", "a", "--count", "three")
    expected = "--count: 'three' is not a whole number"
    assert str(caught.value) == f"{expected} (see dppo-redis something --help)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--total-steps"], "--total-steps needs a value behind it"),
        (
            ["--env-kwargs", "gravity"],
            "--env-kwargs: write a name and a value for each, with a space between: NAME VALUE ...",
        ),
    ],
)
def test_a_value_that_is_missing_is_asked_for(words: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options(TrainOptions, ["CartPole-v1", *words], "dppo-redis train")
    assert str(caught.value) == f"{said} (see dppo-redis train --help)"


@pytest.mark.parametrize("words", [["--resume=no"], ["--overwrite=no"]])
def test_a_switch_takes_no_value(words: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=f"{words[0][:-3]} takes no value.* \\(got 'no'\\)"):
        read_options(TrainOptions, ["CartPole-v1", *words], "dppo-redis train")


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("500000", 500_000),
        ("500_000", 500_000),
        ("1e6", 1_000_000),
        ("1.5E3", 1500),
        ("1e17", 10**17),
        ("-3", -3),
        ("3.0", 3),
        ("0.0", 0),
    ],
)
def test_a_whole_number_is_written_as_people_write_it(word: str, number: int) -> None:
    assert parse("--run", "a", "--count", word).count == number


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("1.5e0", "'1.5e0' is not a whole number"),
        ("1e-3", "'1e-3' is not a whole number"),
        ("1e-999999999", "'1e-999999999' is not a whole number"),
        ("1e999999999", "'1e999999999' is too large"),
        ("1e18", "'1e18' is too large"),
        ("inf", "'inf' is not a whole number"),
        ("nan", "'nan' is not a whole number"),
        ("", "'' is not a whole number"),
        ("500k", "write 500e3"),
        ("1.5M", "write 1.5e6"),
    ],
)
@pytest.mark.parametrize("flag", ["--total-steps", "--rollout-steps", "--network.hidden"])
def test_a_value_that_is_no_whole_number_is_refused_by_name(flag: str, word: str, reason: str) -> None:
    """Also where the flag may be left out (`int | None`) or takes several (`tuple[int, ...]`)."""
    with pytest.raises(ConfigurationError) as caught:
        read_options(TrainOptions, ["A-v0", flag, word], "dppo-redis train")
    assert str(caught.value).startswith(f"{flag}: ")
    assert reason in str(caught.value)


def test_the_command_line_wins_over_the_file_it_names(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('env_id = "Pendulum-v1"\nseed = 5\nenv_kwargs = {g = 9.0}\n')
    words = ["--config", str(file), "--env-kwargs", "render_mode", "human", "--total_steps", "7000"]
    options = read_options(TrainOptions, words, "dppo-redis train")
    assert (options.config.env_id, options.config.seed, options.config.total_steps) == (
        "Pendulum-v1",
        5,
        7000,
    )
    assert options.config.env_kwargs == {"g": 9.0, "render_mode": "human"}


def test_a_resumed_run_is_read_from_its_directory(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('env_id = "CartPole-v1"\nseed = 8\n')
    options = read_options(TrainOptions, [f"--run_dir={tmp_path}", "--resume"], "dppo-redis train")
    assert (options.config.seed, options.resume, options.run_dir) == (8, "last", tmp_path)
