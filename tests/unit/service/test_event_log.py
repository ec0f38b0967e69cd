"""The event log: one whole line per event, even if the process is killed or the disk is full."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog, arrays_digest


def events(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_event_is_one_line_with_its_time_and_its_process(tmp_path: Path) -> None:
    event_log = EventLog(tmp_path / "new" / "actor.jsonl", "actor")
    event_log.write("produced", boot="ab", seq=1)
    event_log.write("confirmed", id=b"12-0")
    first, second = events(tmp_path / "new" / "actor.jsonl")
    assert (first["event"], first["boot"], first["seq"], first["service"]) == ("produced", "ab", 1, "actor")
    assert (second["event"], second["id"]) == ("confirmed", "12-0")
    assert first["process"] == second["process"]
    assert str(first["time"]) <= str(second["time"])


def test_without_a_file_nothing_is_kept_and_nothing_opened() -> None:
    assert not NO_EVENT_LOG.is_on
    NO_EVENT_LOG.write("produced", boot="ab")


def test_a_second_process_appends_and_ends_a_line_that_the_first_one_left_torn(tmp_path: Path) -> None:
    file = tmp_path / "learner.jsonl"
    EventLog(file).write("acquired", epoch=1)
    with file.open("a") as torn:
        torn.write('{"event":"trai')
    EventLog(file).write("acquired", epoch=2)
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["epoch"] == 1
    assert json.loads(lines[2])["epoch"] == 2
    assert len(lines) == 3


def test_the_next_event_counts_those_that_a_full_disk_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_log = EventLog(tmp_path / "actor.jsonl")
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        event_log.write("produced", seq=1)
        event_log.write("produced", seq=2)
    event_log.write("produced", seq=3)
    event_log.write("produced", seq=4)
    kept = [(event["seq"], event.get("missed")) for event in events(tmp_path / "actor.jsonl")]
    assert kept == [(3, 2), (4, None)]


def test_a_file_that_cannot_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/actor\.jsonl"):
        EventLog(tmp_path / "file" / "actor.jsonl")


def test_the_digest_of_arrays_knows_names_and_values_and_no_order() -> None:
    one, two = np.ones(2, np.float32), np.zeros(2, np.float32)
    digest = arrays_digest({"a": one, "b": two})
    assert digest == arrays_digest({"b": two.copy(), "a": one.copy()})
    assert digest != arrays_digest({"a": two, "b": one})
