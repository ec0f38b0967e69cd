"""One record per update in metrics.csv and in TensorBoard."""

import csv
import io
import itertools
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.report_fields import names, to_fields
from dppo_redis.protocol.reports import UpdateRecord
from dppo_redis.service import files as files_module
from dppo_redis.service.files import read_table
from learner.metrics import MetricsFiles, make_record
from learner.ppo.drift import Drift
from learner.ppo.update import UpdateReport
from learner.tensorboard_file import TensorBoardFile
from ops.screens.curve import CURVE_ROWS, read_metrics


def record_of(by_staleness: dict[int, Drift], update: int = 1) -> UpdateRecord:
    report = UpdateReport(
        policy_loss=0.5,
        value_loss=0.5,
        entropy=0.5,
        approx_kl=0.5,
        clip_fraction=0.5,
        explained_variance=0.5,
        ratio_error=None,
        learning_rate=0.5,
        gamma=0.5,
        episode_steps=0.5,
        gradient_steps=1,
        skipped_steps=0,
        outlier_observations=0,
        outlier_rewards=0,
        drift=Drift(rows=12, ratio=1.25, kl=0.125, clip_fraction=0.5, effective_share=0.75),
        drift_by_staleness=by_staleness,
    )
    return make_record(
        report,
        update=update,
        trained_steps=2048 * update,
        settled_steps=2048 * update,
        train_s=1.0,
        return_mean=None,
        episodes=0,
        evaluation_return=None,
        evaluation_steps=None,
        staleness_mean=1.0,
        staleness_max=3,
        version=1,
        wait_s=0.0,
        update_s=1.0,
    )


T = TypeVar("T")
CSV_NAME = RunFiles(Path()).metrics.name
AGES = {1: Drift(8, 1.5, 0.25, 0.125, 0.5), 3: Drift(4, 0.75, 1.0, 1.0, 0.25)}


def test_the_drift_of_each_staleness_is_in_the_csv(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path, first_update=0)
    files.write(record_of(AGES))
    files.close()
    with (tmp_path / CSV_NAME).open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert [row[f"drift_{name}"] for name in ("ratio", "kl", "clip_fraction", "effective_share")] == [
        "1.25",
        "0.125",
        "0.5",
        "0.75",
    ]
    assert json.loads(row["drift_by_staleness"]) == {
        "1": {"rows": 8, "ratio": 1.5, "kl": 0.25, "clip_fraction": 0.125, "effective_share": 0.5},
        "3": {"rows": 4, "ratio": 0.75, "kl": 1.0, "clip_fraction": 1.0, "effective_share": 0.25},
    }


def test_tensorboard_has_a_curve_for_each_staleness(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path, first_update=0)
    files.write(record_of(AGES))
    files.write(record_of({}))
    files.close()
    tensorboard = EventAccumulator(str(tmp_path / "tensorboard")).Reload()

    def values(tag: str) -> list[float]:
        return [event.value for event in tensorboard.Scalars(tag)]

    assert values("drift_kl/staleness_1") == [0.25]
    assert values("drift_effective_share/staleness_3") == [0.25]
    assert values("drift/kl") == [0.125, 0.125]


def test_a_resumed_run_continues_after_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    """Also where a line was cut short, two became one, or a release with other columns wrote them."""
    files = MetricsFiles(tmp_path, first_update=0)
    for update in range(1, 6):
        files.write(record_of(AGES, update))
    files.close()
    header, *lines = (tmp_path / CSV_NAME).read_text().splitlines()
    lines[1] = lines[1][:20] + lines[2]
    lines[4] = lines[4][:20]
    old = [f"{header},of_another_release", *(f"{line},7" for line in lines[:4]), lines[4]]
    (tmp_path / CSV_NAME).write_text("\n".join(old))
    resumed = MetricsFiles(tmp_path, first_update=4)
    resumed.write(record_of({}, update=5))
    resumed.close()
    with (tmp_path / CSV_NAME).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["update"] for row in rows] == ["1", "3", "4", "5"]
    assert rows[2]["staleness_max"] == "3"
    tensorboard = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in tensorboard.Scalars("drift/kl")] == [
        2048 * update for update in range(1, 6)
    ]


def test_a_disk_that_refuses_tensorboard_its_file_costs_no_row_and_only_the_curves_of_that_time(
    tmp_path: Path,
) -> None:
    in_the_way = tmp_path / "tensorboard"
    in_the_way.touch()
    files = MetricsFiles(tmp_path, first_update=0)
    files.write(record_of(AGES))
    files.close()
    assert len((tmp_path / CSV_NAME).read_text().splitlines()) == 2
    tensorboard = TensorBoardFile(in_the_way, 0, pause_s=0)
    with pytest.raises(OSError, match="tensorboard"):
        tensorboard.write(record_of(AGES))
    in_the_way.unlink()
    tensorboard.write(record_of(AGES, update=2))
    tensorboard.close()
    curves = EventAccumulator(str(in_the_way)).Reload()
    assert [event.step for event in curves.Scalars("drift/kl")] == [2 * 2048]


def updates(directory: Path) -> list[str]:
    return [row["update"] for row in read_table(directory / CSV_NAME)]


def test_a_resumed_run_continues_after_its_checkpoint_in_any_file_that_a_crash_left(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path, first_update=0)
    for update in (1, 2, 3):
        files.write(record_of(AGES, update=update))
    files.close()
    with (tmp_path / CSV_NAME).open("ab") as stream:
        stream.write(b"\0\0\xff\n1,2048")  # of update 1234, say, cut by a full disk
    files = MetricsFiles(tmp_path, first_update=2)
    files.write(record_of(AGES, update=3))
    files.close()
    assert updates(tmp_path) == ["1", "2", "3"]


def test_a_table_of_a_release_with_other_columns_is_carried_on(tmp_path: Path) -> None:
    (tmp_path / CSV_NAME).write_text("update,trained_steps,gone\n1,2048,7\n2,4096,7\n")
    MetricsFiles(tmp_path, first_update=1).close()
    (row,) = read_table(tmp_path / CSV_NAME)
    assert (row["update"], row["trained_steps"], row["settled_steps"]) == ("1", "2048", "")
    assert "gone" not in row


def test_a_disk_that_refuses_at_the_start_loses_no_row_and_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / CSV_NAME).write_text("update,trained_steps,gone\n1,2048,7\n")
    obstacle = tmp_path / f"{CSV_NAME}.writing"
    obstacle.mkdir()  # nothing can be written aside
    files = MetricsFiles(tmp_path, first_update=1)
    files.write(record_of(AGES, update=2))
    assert updates(tmp_path) == ["1"]
    obstacle.rmdir()
    files.write(record_of(AGES, update=3))
    files.close()
    assert updates(tmp_path) == ["1", "3"]


def write_many(directory: Path, rows: int) -> int:
    """A table of so many rows with an evaluation for each 100; the bytes of a row."""
    fields = to_fields(replace(record_of(AGES), evaluation_return=1.0))
    numbers = {"update": "@update", "trained_steps": "@trained", "evaluation_steps": "@evaluated"}
    text = io.StringIO(newline="")
    csv.DictWriter(text, names(UpdateRecord), extrasaction="ignore").writerow({**fields, **numbers})
    line = text.getvalue()
    with (directory / CSV_NAME).open("w", newline="") as stream:
        csv.DictWriter(stream, names(UpdateRecord)).writeheader()
        for update in range(1, rows + 1):
            numbered = line.replace("@update", str(update)).replace("@trained", str(2048 * update))
            stream.write(numbered.replace("@evaluated", str(update // 100 * 100)))
    return len(line)


def traced(work: Callable[[], T]) -> tuple[T, int]:
    """The result of `work`, and its peak of memory."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("first_update", [299_990, 200_000], ids=["just saved", "an old checkpoint"])
def test_a_run_of_300_000_updates_is_resumed_without_reading_its_table_into_memory(
    tmp_path: Path, first_update: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = write_many(tmp_path, 300_000)
    with (tmp_path / CSV_NAME).open("a") as stream:
        stream.write("300001,6144")  # cut by a crash
    read = 0
    split = files_module.split_row

    def counted(line: str) -> list[str]:
        nonlocal read
        read += 1
        return split(line)

    monkeypatch.setattr("learner.metrics.split_row", counted)
    files, bytes_held = traced(lambda: MetricsFiles(tmp_path, first_update))
    files.write(record_of(AGES, update=first_update + 1))
    files.close()
    assert bytes_held < 2**20 < 300_000 * row
    assert read == 1
    lines = (tmp_path / CSV_NAME).read_text().splitlines()
    assert len(lines) == first_update + 2
    assert [line.split(",")[0] for line in lines[-2:]] == [str(first_update), str(first_update + 1)]


def test_a_curve_of_300_000_updates_is_drawn_from_some_thousands(tmp_path: Path) -> None:
    write_many(tmp_path, 300_000)
    records, bytes_held = traced(lambda: read_metrics(tmp_path, most=CURVE_ROWS))
    assert bytes_held < 50 * 2**20
    assert CURVE_ROWS / 2 < len(records) < 2 * CURVE_ROWS + 2
    assert [records[0].update, records[-1].update] == [1, 300_000]
    assert max(b.update - a.update for a, b in itertools.pairwise(records)) <= 300_000 / (CURVE_ROWS / 2) + 1
    new = {record.evaluation_steps for record in records if record.update % 100 == 0}
    assert len(new) > 3000 / 2


def test_a_short_table_is_read_whole_and_every_evaluation_of_a_longer_one(tmp_path: Path) -> None:
    write_many(tmp_path, 350)
    assert read_metrics(tmp_path, most=350) == read_metrics(tmp_path)
    updates = [record.update for record in read_metrics(tmp_path, most=10)]
    assert set(updates) >= {1, 100, 200, 300, 350}
    assert len(updates) < 20
    assert read_metrics(tmp_path / "nothing", most=10) == []


def test_a_line_that_was_cut_inside_quotes_takes_no_other_row_with_it(tmp_path: Path) -> None:
    write_many(tmp_path, 5)
    header, *lines = (tmp_path / CSV_NAME).read_text().splitlines()
    lines[2] = lines[2][:-9]
    (tmp_path / CSV_NAME).write_text("\n".join([header, *lines, ""]))
    assert updates(tmp_path) == ["1", "2", "4", "5"]
    MetricsFiles(tmp_path, first_update=3).close()
    assert updates(tmp_path) == ["1", "2"]
