"""Metrics that an environment reports appear beside the return in all outputs."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command
from tests.envs.reporting import reported

ENVIRONMENT = "tests.envs:Reporting-v0"


def mean_of(episodes: range) -> dict[str, float]:
    """The mean of each number over the episodes that have it."""
    infos = [reported(k) for k in episodes]
    rare = [float(info["metrics"]["rare"]) for info in infos if "rare" in info["metrics"]]
    return {
        "is_success": sum(float(info["is_success"]) for info in infos) / len(infos),
        "number": sum(float(info["metrics"]["number"]) for info in infos) / len(infos),
        "rare": sum(rare) / len(rare),
    }


def test_means_of_the_last_100_episodes_are_in_csv_curves_summary_and_evaluation(tmp_path: Path) -> None:
    """One environment of one actor in lock-step mode, so that its episodes are trained on in order."""
    knobs = ["--actors", "1", "--envs-per-actor", "1", "--lock-step", "--total-steps", "4000", "--json"]
    with Command("train", ENVIRONMENT, *knobs, cwd=tmp_path) as command:
        assert command.wait(60) == ExitStatus.DONE
        summary: dict[str, Any] = command.summary()
    run_dir = Path(summary["run_dir"])
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        ended = int(row["episodes"])
        wanted = mean_of(range(max(0, ended - 100), ended))
        assert json.loads(row["metrics"]) == pytest.approx(wanted)
    last = json.loads(rows[-1]["metrics"])
    assert summary["metrics"] == pytest.approx(last)
    assert {"is_success", "number"} <= set(
        summary["evaluation"]["metrics"]
    )  # "rare" is in some episodes only
    curves = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    (*_, point) = curves.Scalars("environment/is_success")
    assert point.value == pytest.approx(last["is_success"])
    with Command("evaluate", str(run_dir), "--episodes", "3", "--json", cwd=tmp_path) as command:
        assert command.wait(30) == ExitStatus.DONE
        assert {"is_success", "number"} <= set(command.summary()["metrics"])
