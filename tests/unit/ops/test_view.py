"""What others wrote is shown as it is, and can neither end nor paint the screen."""

import io
from typing import Any

import pytest

from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.reports import Control, RunStatus
from ops.screens.tables import make_console, summary_table
from ops.screens.view import Screen, plain_line, render
from tests.factories import make_summary

HOSTILE = "no file [/tmp/x], shape [batch]:smile:\nsecond\x1b[31m line"
SHOWN = "no file [/tmp/x], shape [batch]:smile: second\N{REPLACEMENT CHARACTER}[31m line"


def status_with(place: str, text: str) -> RunStatus:
    fields = {"state": "training", "device": "cpu", "alarm": "", "return_mean": ""}
    report = {"host": "here", "last_error": ""}
    if place in fields:
        fields[place] = text
    elif place in report:
        report[place] = text
    state, reason = (text if place == name else "" for name in ("control", "reason"))
    control = Control(state, reason, None)
    return RunStatus("run", fields, control, Ledger({}), None, {0: report}, age_s=0.0)


def printed(renderable: Any) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    console.width = 300
    console.print(renderable)
    return stream.getvalue()


@pytest.mark.parametrize("place", ["control", "reason", "device", "alarm", "host", "last_error"])
def test_a_panel_shows_what_others_wrote_to_the_letter(place: str) -> None:
    assert SHOWN[:60] in printed(render(status_with(place, HOSTILE)))


def test_a_number_that_is_none_is_shown_as_unknown() -> None:
    assert "return 7.5," in plain_line(status_with("return_mean", "7.5"))
    assert "return -," in plain_line(status_with("return_mean", HOSTILE))


@pytest.mark.parametrize("place", ["control", "alarm", "last_error"])
def test_a_plain_line_stays_one_line(place: str) -> None:
    line = plain_line(status_with(place, HOSTILE))
    assert SHOWN in line
    assert "\n" not in line


def test_a_path_with_brackets_is_named_whole_in_the_summary() -> None:
    summary = make_summary(run_dir="/data/[exp]/[/x]")
    assert "/data/[exp]/[/x]" in printed(summary_table(summary))


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Screen(stream) as screen:
        screen.show(status_with("", ""))
        assert "0/0 steps" in stream.getvalue()


def test_a_pipe_gets_plain_lines_also_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.show(status_with("", ""))
    assert "0/0 steps" in stream.getvalue()
    assert "╭" not in stream.getvalue()
