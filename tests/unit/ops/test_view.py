"""The screens: texts of other processes are shown unchanged and cannot control the terminal."""

import io
import json
from typing import Any

import pytest

from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.reports import Control
from dppo_redis.store.run_status import RunStatus
from ops.commands.status import status_json
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


def printed(renderable: Any, width: int = 300) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    console.width = width
    console.print(renderable)
    return stream.getvalue()


@pytest.mark.parametrize("place", ["control", "reason", "device", "alarm", "host", "last_error"])
def test_a_panel_shows_texts_of_other_processes_unchanged(place: str) -> None:
    assert SHOWN[:60] in printed(render(status_with(place, HOSTILE)))


def test_a_text_in_place_of_a_number_is_shown_as_unknown() -> None:
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
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Screen(stream) as screen:
        screen.show(status_with("", ""))
        assert "0/0 steps" in stream.getvalue()


def test_a_pipe_gets_plain_lines_also_with_forced_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.show(status_with("", ""))
    assert "0/0 steps" in stream.getvalue()
    assert "╭" not in stream.getvalue()


def status_of(fields: dict[str, str], actors: dict[int, dict[str, str]] | None = None) -> RunStatus:
    """A run that trains, with these fields of `:status` and of its actors."""
    stored = {
        "state": "training",
        "update": "7",
        "budget_steps": "100000",
        "trained_steps": "40000",
        **fields,
    }
    return RunStatus("run", stored, Control("run", "", None), Ledger({}), None, actors or {}, age_s=0.0)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        # rates: the last minute, and the mean over the run beside it
        ({"steps_per_s_recent": "286.4", "steps_per_s": "1091.2"}, "286 steps/s (1,091 over the run)"),
        # time left: 60,000 steps at 250/s are 240 s, for any mean
        ({"steps_per_s_recent": "250", "steps_per_s": "9999"}, "at most 4 min 0 s left"),
        # 60,000 at 7/s are 8571 s
        ({"steps_per_s_recent": "7"}, "at most 2 h 22 min left"),
        ({"steps_per_s_recent": "2000"}, "at most 30 s left"),
        # waits: shares as per cent
        ({"learner_wait_share": "0.986"}, "the learner 99 % of the last minute"),
        ({"learner_wait_share": "0.529", "actor_wait_share": "0.031"}, "waiting 3 % of the time"),
        ({"planned_actors": "5"}, "0 alive, 5 planned"),
        # staleness: over the run, in the last minute, and the share that was too old
        (
            {"staleness_mean": "0.94", "staleness_recent": "2.517", "staleness_max": "4"},
            "mean 0.94 (2.52 last minute), max 4",
        ),
        ({"stale_share": "0.5"}, "50 % too old"),
        ({"staleness_recent": ""}, "(- last minute)"),
    ],
)
def test_each_number_follows_from_the_fields(fields: dict[str, str], shown: str) -> None:
    assert shown in printed(render(status_of(fields)))


@pytest.mark.parametrize(
    "fields", [{"steps_per_s_recent": "0"}, {"steps_per_s_recent": "9", "trained_steps": "100000"}, {}]
)
def test_no_remaining_time_is_shown_without_a_rate(fields: dict[str, str]) -> None:
    assert "left" not in printed(render(status_of(fields)))


def sampling(done: int, length: int, seconds: float, pushes: int = 0) -> dict[str, str]:
    return {
        "rollout_steps": str(length),
        "rollout_steps_done": str(done),
        "rollout_s": str(seconds),
        "pushes": str(pushes),
    }


@pytest.mark.parametrize(
    ("actors", "shown"),
    [
        # 12 steps took 5.77 s, the other 52 take 25.0 s
        ({0: sampling(12, 64, 5.77)}, "first rollouts: 12 of 64 steps, about 25 s left"),
        # the slowest decides: 54 steps at half a second
        ({0: sampling(40, 64, 9.0), 1: sampling(10, 64, 5.0)}, "10 of 64 steps, about 27 s left"),
        ({0: sampling(0, 64, 1.0)}, "first rollouts: 0 of 64 steps"),
        ({0: {"host": "here"}}, "no environment steps yet"),
    ],
)
def test_the_first_rollouts_show_their_progress(actors: dict[int, dict[str, str]], shown: str) -> None:
    status = status_of({"state": "waiting", "trained_steps": "0", "update": "0"}, actors)
    assert shown in printed(render(status))
    assert shown in plain_line(status)


def test_after_the_first_rollouts_their_progress_disappears() -> None:
    status = status_of({"update": "1"}, {0: sampling(12, 64, 5.77, pushes=1)})
    assert "first rollouts" not in printed(render(status)) + plain_line(status)


def test_missing_actors_and_warnings_are_lines() -> None:
    missing = "3 of 5 planned actors, host b (actors 3, 4) last seen 40 s ago"
    status = status_of({"missing": json.dumps([missing]), "warnings": json.dumps(["9 actors sample a run"])})
    assert f"! {missing}" in printed(render(status))
    assert "! 9 actors sample a run" in printed(render(status))
    assert missing in plain_line(status)
    shown = status_json(status)
    assert (shown["missing"], shown["warnings"]) == ([missing], ["9 actors sample a run"])


def test_the_status_object_has_the_wait_of_the_last_minute_and_how_each_actor_steps() -> None:
    actors = {0: {"vectorization": "async", "step_ms": "30.2"}}
    assert "30.2 ms async" in printed(render(status_of({}, actors)))
    shown = status_json(status_of({"learner_wait_share": "0.986"}, actors))
    assert shown["learner_wait_share"] == 0.986
    assert shown["actors"]["0"] == {"vectorization": "async", "step_ms": 30.2}


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_shows_every_number_of_the_first_lines(width: int) -> None:
    stream = io.StringIO()
    console = make_console(stream)
    console.width = width
    fields = {"steps_per_s_recent": "1250", "steps_per_s": "1091.2", "learner_wait_share": "0.986"}
    console.print(render(status_of(fields)))
    text = " ".join(stream.getvalue().replace("│", " ").split())
    for part in ("40,000 / 100,000 steps", "1,250 steps/s", "(1,091 over the run)", "99 %"):
        assert part in text, stream.getvalue()


def test_no_column_title_of_the_actors_is_cut_at_80_columns() -> None:
    """Also with a long host name and large numbers."""
    report = {
        "host": "a-host-with-a-long-name.example.org",
        "fps": "12345.6",
        "step_ms": "0.123",
        "version": "123456",
        "vectorization": "native",
        "pushes": "123456",
        "wait_share": "1",
        "boot": "12",
        "last_error": "it broke",
    }
    lines = printed(render(status_of({}, {0: report, 1: report})), width=80).splitlines()
    (heads,) = (line for line in lines if "steps/s  a step" in line)
    words = ["actor", "host", "steps/s", "a", "step", "version", "pushed", "waiting", "boot"]
    assert heads.strip("│ ").split() == words
    row = next(line for line in lines if "12345.6" in line)
    assert "0.123 ms native  123456   123456  100 %    12" in row
    assert any("actors 0, 1: it broke" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_many_metrics_of_the_environment_fit_on_one_line() -> None:
    metrics = {"is_success": 0.93, **{f"number_{k}": 1.25 * k for k in range(31)}}
    status = status_of({"metrics": json.dumps(metrics)})
    lines = [line for line in printed(render(status), width=80).splitlines() if "number_" in line]
    assert len(lines) == 1
    assert "is_success 0.93, number_0 0, number_1 1.25" in lines[0]
    assert "is_success 0.93, number_0 0, number_1 1.25, number_2 2.5 ..." in plain_line(status)
    assert status_json(status)["metrics"] == metrics


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', '{"\\u001b[31m": 1}', '{"a": 1e999}', "[" * 99999])
def test_hostile_numbers_in_the_status_are_ignored(text: str) -> None:
    assert status_json(status_of({"metrics": text}))["metrics"] == {}
