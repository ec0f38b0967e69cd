"""The text of --help: complete, readable at 80 columns, and what matters most comes first."""

import re
from typing import Any

import pytest

from dppo_redis.command_line.declared import options_of
from dppo_redis.command_line.help_text import help_text
from ops.commands.status import StatusOptions
from ops.help_layout import SERIAL_LAYOUT, TRAIN_LAYOUT
from ops.options import SerialOptions, TrainOptions, read_options

COMMANDS = [(TrainOptions, TRAIN_LAYOUT), (SerialOptions, SERIAL_LAYOUT)]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def text_of(kind: type[Any], layout: Any = None) -> str:
    return help_text("dppo-redis something", "Do it.", options_of(kind), layout)


@pytest.mark.parametrize(("kind", "layout"), COMMANDS, ids=["train", "serial"])
def test_each_option_is_there_once_and_no_line_is_wider_than_the_terminal(kind: Any, layout: Any) -> None:
    text = text_of(kind, layout)
    listed = re.findall(r"^  (-h|--[a-z][\w.-]*|ENV)", text, re.MULTILINE)
    expected = ["-h", *(o.metavar if o.is_positional else o.flag for o in options_of(kind))]
    assert sorted(listed) == sorted(expected)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("kind", "layout"), COMMANDS, ids=["train", "serial"])
def test_eight_options_and_three_examples_come_first(kind: Any, layout: Any) -> None:
    first, examples = text_of(kind, layout).split("\n\n")[2:4]
    assert len(re.findall(r"^  (?:--|ENV)", first, re.MULTILINE)) == 8
    assert len(re.findall(r"^  # ", examples, re.MULTILINE)) == 3
    assert "slow environment" in examples


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("kind", "layout"), COMMANDS, ids=["train", "serial"])
def test_the_examples_are_command_lines_that_are_accepted(kind: Any, layout: Any, number: int) -> None:
    words = layout.examples[number][1].replace("\\\n", " ").split()
    assert read_options(kind, words[2:], "dppo-redis").config.env_id == words[2]


def test_defaults_are_shown_as_they_are_typed_and_only_where_they_say_something() -> None:
    text = " ".join(text_of(TrainOptions, TRAIN_LAYOUT).split())
    for shown in ("(default: 500000)", "(default: 64 64)", "(default: 1e-05)", "(default: true)"):
        assert shown in text
    for hidden in ("default: ''", "default: None", "default: ()", "default: )", "{None}", "default: False"):
        assert hidden not in text


def test_a_command_with_few_options_has_one_list() -> None:
    text = text_of(StatusOptions)
    assert text.splitlines()[0] == "usage: dppo-redis something [RUN] [OPTIONS]"
    assert "Options:\n  -h, --help" in text
