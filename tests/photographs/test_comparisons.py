"""Each comparison reports one planted change by name, and no difference if only the clock differs."""

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.photographs.commands import forms, in_order, read_monitor
from tests.photographs.comparing import TIMED, UNREPEATABLE, differences
from tests.photographs.cost import Job, median_interval, report
from tests.photographs.events import kinds, read_events, until
from tests.photographs.lock_step import compare_learnt
from tests.photographs.sides import BrokenSideError, Side

# Run directories


def _checkpoint() -> dict[str, Any]:
    moments = {"exp_avg": torch.zeros(4), "step": torch.tensor(40.0)}
    return {
        "model": {"policy.0.weight": torch.linspace(-1, 1, 8).reshape(2, 4)},
        "optimizer": {"state": {0: moments}, "param_groups": [{"lr": 1e-3}]},
        "minibatch_rng": torch.arange(8, dtype=torch.uint8),
        "progress": {"update": 6, "train_s": 1.5, "returns": [9.0, float("nan")]},
        "marks": {"af4c2eda31bed37f": 6},
        "actor_boots": {"0": 1, "1": 1},
    }


_ROWS = [
    {"update": "1", "train_s": "0.25", "policy_loss": "-0.0054", "entropy": "0.68"},
    {"update": "2", "train_s": "0.35", "policy_loss": "-0.0035", "entropy": "0.67"},
]


def _write_run(place: Path, checkpoint: dict[str, Any], rows: list[dict[str, str]]) -> Path:
    (place / "checkpoints").mkdir(parents=True)
    torch.save(checkpoint, place / "checkpoints" / "checkpoint-000000006.pt")
    with (place / "metrics.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (place / "config.toml").write_text('env_id = "CartPole-v1"\n')
    (place / "run.json").write_text('{"run": "r", "sampling": "a fleet"}')
    return place


def _flip_one_bit(checkpoint: dict[str, Any]) -> None:
    checkpoint["model"]["policy.0.weight"].view(torch.int32)[1, 3] ^= 1


def _flip_a_sign_of_zero(checkpoint: dict[str, Any]) -> None:
    checkpoint["optimizer"]["state"][0]["exp_avg"][2] = -0.0


def _train_once_more(checkpoint: dict[str, Any]) -> None:
    checkpoint["progress"]["update"] += 1


def _leave_out(checkpoint: dict[str, Any]) -> None:
    del checkpoint["minibatch_rng"]


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (_flip_one_bit, "checkpoint.model.policy.0.weight"),
        (_flip_a_sign_of_zero, "checkpoint.optimizer.state.0.exp_avg"),
        (_train_once_more, "checkpoint.progress.update"),
        (_leave_out, "checkpoint"),
    ],
)
def test_one_changed_value_of_a_checkpoint_is_named(
    tmp_path: Path, plant: Callable[[dict[str, Any]], None], name: str
) -> None:
    changed = _checkpoint()
    plant(changed)
    old, new = (
        _write_run(tmp_path / "old", _checkpoint(), _ROWS),
        _write_run(tmp_path / "new", changed, _ROWS),
    )
    (line,) = compare_learnt(old, new)
    assert line.startswith(f"{name}: ")


def test_one_changed_cell_of_the_metrics_is_named(tmp_path: Path) -> None:
    rows = copy.deepcopy(_ROWS)
    rows[1]["policy_loss"] = "-0.0036"
    old, new = (
        _write_run(tmp_path / "old", _checkpoint(), _ROWS),
        _write_run(tmp_path / "new", _checkpoint(), rows),
    )
    assert compare_learnt(old, new) == ["metrics.csv[1].policy_loss: '-0.0035' != '-0.0036'"]


def test_a_renamed_column_and_a_missing_row_are_reported() -> None:
    renamed = [{"entropy " if name == "entropy" else name: x for name, x in row.items()} for row in _ROWS]
    assert differences(_ROWS, renamed, TIMED)
    assert differences(_ROWS, _ROWS[:1], TIMED)


def test_clocks_boots_and_nan_are_no_difference(tmp_path: Path) -> None:
    other = _checkpoint()
    other["progress"]["train_s"] = 9.0
    other["marks"] = {"0492b0fa7b7e6b3b": 6}
    other["actor_boots"] = {"1": 1, "0": 1}
    rows = [{**row, "train_s": "7.5"} for row in _ROWS]
    old, new = _write_run(tmp_path / "old", _checkpoint(), _ROWS), _write_run(tmp_path / "new", other, rows)
    assert compare_learnt(old, new) == []


def test_only_clocks_and_random_values_are_ignored() -> None:
    assert {
        *("train_s", "wait_s", "update_s", "wall_s", "steps_per_s", "evaluation_return", "evaluation_steps"),
        *("run", "marks", "last_entries_added", "actor_boots"),
    } == TIMED | UNREPEATABLE


# Commands


def _monitor(address: str, *words: str) -> str:
    quoted = " ".join(f'"{word}"' for word in words)
    return f"+1796085510.702716 [0 {address}] {quoted}"


_KEY = "dppo:{r}:"
_PUBLISH = ("EVALSHA", "c227", "2", f"{_KEY}epoch", f"{_KEY}weights", "1", "2", "blob", "\\x01" * 50)
_SETTLE = (
    *("EVALSHA", "1361", "3", f"{_KEY}epoch", f"{_KEY}rollouts", f"{_KEY}ledger"),
    *("1", "learners", "1796085510702-0", "trained", "", "128"),
)
_READ = ("XREADGROUP", "GROUP", "learners", "learner", "COUNT", "2", "STREAMS", f"{_KEY}rollouts", ">")
_LEARNER, _ACTOR = "127.0.0.1:41036", "127.0.0.1:41018"
_PUSH = (
    "XADD",
    f"{_KEY}rollouts",
    "*",
    "actor",
    "0",
    "boot",
    "af4c2eda31bed37f",
    "update",
    "0",
    "crc",
    "306",
)
_LINES = [
    _monitor(_ACTOR, "CLIENT", "SETNAME", "dppo-actor-r"),
    _monitor(_LEARNER, "CLIENT", "SETNAME", "dppo-learner-r"),
    _monitor(_ACTOR, "HINCRBY", f"{_KEY}boots", "0", "1"),
    _monitor(_ACTOR, "HGET", f"{_KEY}actor:0", "host"),
    _monitor(_ACTOR, "XLEN", f"{_KEY}rollouts"),
    _monitor(_LEARNER, *_READ),
    _monitor(_ACTOR, *_PUSH),
    _monitor(_LEARNER, *_PUBLISH),
    _monitor("lua", "HSET", f"{_KEY}weights", "version", "2"),
    _monitor(_LEARNER, *_SETTLE),
    _monitor("lua", "XDEL", f"{_KEY}rollouts", "1796085510702-0"),
]


def _in_order(lines: list[str]) -> dict[str, list[str]]:
    return in_order(read_monitor(lines), updates=1)


def test_commands_of_two_runs_that_differ_in_ids_times_and_polls_are_the_same() -> None:
    text = (
        "\n".join(_LINES).replace("1796085510702-0", "1796099999001-0").replace("af4c2eda31bed37f", "0" * 16)
    )
    other = text.splitlines()
    other.insert(7, _monitor(_LEARNER, *_READ))
    other.insert(5, _monitor(_ACTOR, "XLEN", f"{_KEY}rollouts"))
    assert differences(_in_order(_LINES), _in_order(other)) == []
    assert differences(forms(read_monitor(_LINES)), forms(read_monitor(other))) == []


def test_a_command_that_comes_before_another_one_is_named() -> None:
    other = [*_LINES[:7], *_LINES[9:11], *_LINES[7:9]]  # settled before the weights are published
    (line,) = differences(_in_order(_LINES), _in_order(other))
    assert line.startswith("learner[1]: 'EVALSHA c227")
    assert "!= 'EVALSHA 1361" in line


def test_the_first_difference_of_two_long_commands_is_shown() -> None:
    words = [str(number) for number in range(200)]
    (line,) = differences([" ".join(words)], [" ".join([*words[:150], "changed", *words[151:]])])
    assert "149 150 151" in line
    assert "149 changed 151" in line


def test_a_changed_byte_of_a_payload_and_a_changed_command_in_a_script_are_named() -> None:
    for before, after in (("\\x01" * 50, "\\x01" * 49 + "\\x02"), ('"XDEL"', '"XACK"')):
        other = [line.replace(before, after) for line in _LINES]
        (line,) = differences(_in_order(_LINES), _in_order(other))
        assert line.startswith("learner[")


def test_a_command_that_only_the_clock_sends_is_named_when_its_form_changes() -> None:
    other = [line.replace('"XLEN"', '"XINFO" "STREAM"') for line in _LINES]
    (line,) = differences(forms(read_monitor(_LINES)), forms(read_monitor(other)))
    assert line.startswith("actor 0[")
    assert "XINFO STREAM" in line


# Events


def _events(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return read_events("".join(json.dumps(event) + "\n" for event in events))


_PRODUCED = {
    "event": "produced",
    "time": 1.5,
    "process": "1.2",
    "boot": "af4c2eda31bed37f",
    "update": 0,
    "crc": 306,
}
_CONFIRMED = {"event": "confirmed", "time": 1.6, "process": "1.2", "boot": "af4c2eda31bed37f", "id": "1-0"}
_TRAINED = {
    "event": "trained",
    "time": 1.7,
    "at": 0,
    "rollouts": [["1796085510702-0", "af4c2eda31bed37f", 1]],
}


def test_one_dropped_and_one_changed_event_are_named() -> None:
    whole = _events(_PRODUCED, _CONFIRMED, _TRAINED)
    dropped = differences(whole, _events(_PRODUCED, _TRAINED))
    assert "[1].event: 'confirmed' != 'trained'" in dropped
    assert differences(whole, _events({**_PRODUCED, "crc": 307}, _CONFIRMED, _TRAINED)) == [
        "[0].crc: 306 != 307"
    ]
    assert differences(whole, _events(_PRODUCED, _CONFIRMED, {**_TRAINED, "at": 1})) == ["[2].at: 0 != 1"]


def test_events_of_two_runs_differ_in_times_boots_and_ids_only() -> None:
    rollouts = [["1796099999001-0", "0492b0fa7b7e6b3b", 1]]
    other = (
        {**_PRODUCED, "time": 2.5, "boot": "0" * 16},
        {**_CONFIRMED, "id": "2-0"},
        {**_TRAINED, "rollouts": rollouts},
    )
    assert differences(_events(_PRODUCED, _CONFIRMED, _TRAINED), _events(*other)) == []


def test_rollouts_begun_after_the_last_update_are_ignored() -> None:
    more = _events(_PRODUCED, _CONFIRMED, {**_PRODUCED, "update": 1})
    assert until(more, updates=1) == _events(_PRODUCED, _CONFIRMED)


def test_a_new_field_of_an_evaluators_event_is_reported() -> None:
    read = {"event": "read", "time": 1.5, "version": 1}
    assert differences(kinds(_events(read)), kinds(_events(read, {**read, "version": 7}))) == []
    assert differences(kinds(_events(read)), kinds(_events({**read, "update": 1})))


# Cost and sides


def test_a_cost_beyond_the_limits_is_reported_and_one_within_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report("update", [0.99, 1.0, 1.01, 1.02, 0.98, 1.0, 1.01, 1.0, 0.97, 1.05])
    assert not report("update", [ratio + 0.04 for ratio in (0.99, 1.0, 1.01, 1.02, 0.98, 1.0, 1.01, 1.0)])
    assert not report("rollout", [1.0] * 8 + [1.07, 1.08])  # the median is fine, its interval is not
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["within", "BEYOND", "BEYOND"]
    assert "CPU time per rollout, new / old: median 1.000, 95 % interval 1.000 to 1.070, 10 pairs" in lines[2]


def test_cost_is_divided_by_updates_rollouts_and_starts() -> None:
    fleet = {"updates": 6, "ledger": {"trained": 12}}
    units = [Job(name, ()).units(fleet) for name in ("update", "rollout", "start")]
    assert units == [6, 12, 1]
    assert Job("update", ()).units({"updates": 60}) == 60  # a serial run has no ledger


def test_the_interval_of_a_median_leaves_out_as_many_as_the_sign_test_allows() -> None:
    assert median_interval(range(1, 7)) == (1, 6)  # 96.9 %
    assert median_interval(range(1, 11)) == (2, 9)  # 97.9 %; (3, 8) would be 89 %
    assert median_interval(range(1, 21)) == (6, 15)


def test_a_side_whose_packages_come_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenSideError, match=r"the old side would run .*dppo_redis"):
        Side("old", tmp_path / "code", tmp_path).verify()
