"""One record per update, where people look at it."""

import csv
import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.reports import UpdateRecord
from dppo_redis.service.files import read_table
from learner.metrics import MetricsFiles, make_record
from learner.ppo.drift import Drift
from learner.ppo.update import UpdateReport
from learner.tensorboard_file import Board


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
        env_steps=2048 * update,
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
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()

    def values(tag: str) -> list[float]:
        return [event.value for event in board.Scalars(tag)]

    assert values("drift_kl/staleness_1") == [0.25]
    assert values("drift_effective_share/staleness_3") == [0.25]
    assert values("drift/kl") == [0.125, 0.125]


def test_a_resumed_run_goes_on_behind_the_rows_that_its_checkpoint_stands_for(tmp_path: Path) -> None:
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
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("drift/kl")] == [2048 * update for update in range(1, 6)]


def test_a_disk_that_refuses_tensorboard_its_file_costs_no_row_and_only_the_curves_of_that_time(
    tmp_path: Path,
) -> None:
    in_the_way = tmp_path / "tensorboard"
    in_the_way.touch()
    files = MetricsFiles(tmp_path, first_update=0)
    files.write(record_of(AGES))
    files.close()
    assert len((tmp_path / CSV_NAME).read_text().splitlines()) == 2
    board = Board(in_the_way, 0, pause_s=0)
    with pytest.raises(OSError, match="tensorboard"):
        board.write(record_of(AGES))
    in_the_way.unlink()
    board.write(record_of(AGES, update=2))
    board.close()
    curves = EventAccumulator(str(in_the_way)).Reload()
    assert [event.step for event in curves.Scalars("drift/kl")] == [2 * 2048]


def updates(directory: Path) -> list[str]:
    return [row["update"] for row in read_table(directory / CSV_NAME)]


def test_a_resumed_run_goes_on_behind_its_checkpoint_whatever_a_crash_left(tmp_path: Path) -> None:
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
    assert (row["update"], row["trained_steps"], row["env_steps"]) == ("1", "2048", "")
    assert "gone" not in row


def test_a_disk_that_refuses_at_the_start_loses_no_row_and_is_tried_again(tmp_path: Path) -> None:
    before = MetricsFiles(tmp_path, first_update=0)
    before.write(record_of(AGES))
    before.close()
    obstacle = tmp_path / f"{CSV_NAME}.writing"
    obstacle.mkdir()  # nothing can be written aside
    files = MetricsFiles(tmp_path, first_update=1)
    files.write(record_of(AGES, update=2))
    assert updates(tmp_path) == ["1"]
    obstacle.rmdir()
    files.write(record_of(AGES, update=3))
    files.close()
    assert updates(tmp_path) == ["1", "3"]
