"""Command lines: every mistake is one line with status 78."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from dppo_redis.arguments import parse_arguments
from dppo_redis.config import RunConfig
from dppo_redis.errors import ConfigurationError, ExitStatus


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


def test_what_is_not_given_has_its_default() -> None:
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
