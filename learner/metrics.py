"""One record per update, where people look at it: metrics.csv and TensorBoard.

Files only; what goes to Redis is the loop's business.
"""

import csv
import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from torch.utils.tensorboard import SummaryWriter

from dppo_redis.files import read_table, write_aside
from dppo_redis.logs import Rarely
from learner.ppo_update import UpdateReport

CSV_NAME = "metrics.csv"
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class UpdateRecord:
    """A row of metrics.csv."""

    update: int
    trained_steps: int
    env_steps: int  # valid steps of all settled rollouts
    train_s: float  # since the first rollout
    return_mean: float | None  # last 100 finished episodes of trained rollouts, raw
    episodes: int
    evaluation_return: float | None  # newest greedy evaluation
    evaluation_steps: int | None  # env_steps of the weights that played it
    staleness_mean: float  # updates, of this batch
    staleness_max: int
    version: int
    wait_s: float  # for rollouts
    update_s: float
    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    explained_variance: float
    ratio_error: float | None  # of rows of staleness 0, before the first gradient step
    learning_rate: float
    gradient_steps: int
    skipped_steps: int
    drift_ratio: float  # of the batch before the first gradient step, see `drift.py`; rows of all ages
    drift_kl: float
    drift_clip_fraction: float
    drift_effective_share: float
    drift_by_staleness: str  # JSON: {"1": {"rows": ..., "ratio": ..., "kl": ..., ...}, "2": ...}


_COLUMNS = [f.name for f in fields(UpdateRecord)]


def make_record(report: UpdateReport, **values: int | float | None) -> UpdateRecord:
    """A record from an update's report and the loop's own numbers."""
    numbers = asdict(report)
    whole, by_staleness = numbers.pop("drift"), numbers.pop("drift_by_staleness")
    del whole["rows"]  # those of the batch
    return UpdateRecord(
        **numbers,
        **{f"drift_{name}": number for name, number in whole.items()},
        drift_by_staleness=json.dumps(_rounded(by_staleness)),
        **values,  # type: ignore[arg-type]
    )


def _rounded(by_staleness: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    return {age: {name: round(number, 6) for name, number in of.items()} for age, of in by_staleness.items()}


class MetricsFiles:
    """Appends records to a run directory; a resumed run continues where its checkpoint left off.

    A disk that refuses is reported and tried again: it ends nothing, and no row that was there is lost.
    """

    def __init__(self, directory: Path, first_update: int) -> None:
        self._directory = directory
        self._first_update = first_update
        self._csv: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._evaluated: int | None = None
        self._rarely = Rarely()
        with self._forgiven():
            self._begin()

    def _begin(self) -> tuple[TextIO, SummaryWriter]:
        if self._csv is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = self._directory / CSV_NAME
            write_aside(file, _table_before(file, self._first_update).encode())
            self._csv = file.open("a", newline="", encoding="utf-8", buffering=1)
        if self._board is None:
            self._board = SummaryWriter(str(self._directory / "tensorboard"), purge_step=None)
        return self._csv, self._board

    @contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._rarely.due():
                _log.error("cannot write metrics: %s", error)

    def write(self, record: UpdateRecord) -> None:
        """Add one record."""
        values = asdict(record)
        with self._forgiven():
            table, board = self._begin()
            csv.DictWriter(table, _COLUMNS).writerow(values)
            self._write_board(board, record, values)

    def _write_board(
        self, board: SummaryWriter, record: UpdateRecord, values: Mapping[str, float | None]
    ) -> None:
        for name, tag in _TAGS.items():
            value = values[name]
            if value is not None:
                board.add_scalar(tag, value, record.trained_steps)
        for tag, value in _of_each_staleness(record):
            board.add_scalar(tag, value, record.trained_steps)
        if record.evaluation_steps is not None and record.evaluation_steps != self._evaluated:
            self._evaluated = record.evaluation_steps
            board.add_scalar("return/evaluation", record.evaluation_return, record.evaluation_steps)

    def close(self) -> None:
        """Flush and close."""
        for file in (self._csv, self._board):
            try:
                if file is not None:
                    file.close()
            except OSError as error:
                _log.error("the last metrics are lost: %s", error)


_TAGS = {
    "return_mean": "return/training",
    "staleness_mean": "staleness/mean",
    "staleness_max": "staleness/max",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "entropy": "policy/entropy",
    "approx_kl": "policy/approx_kl",
    "clip_fraction": "policy/clip_fraction",
    "ratio_error": "policy/ratio_error",
    "drift_ratio": "drift/ratio",
    "drift_kl": "drift/kl",
    "drift_clip_fraction": "drift/clip_fraction",
    "drift_effective_share": "drift/effective_share",
    "explained_variance": "value/explained_variance",
    "learning_rate": "optimiser/learning_rate",
    "wait_s": "time/wait_s",
    "update_s": "time/update_s",
}


def _of_each_staleness(record: UpdateRecord) -> Iterator[tuple[str, float]]:
    """TensorBoard's tags and numbers: one curve for each age of the data."""
    for staleness, numbers in json.loads(record.drift_by_staleness).items():
        for name in ("ratio", "kl", "clip_fraction", "effective_share"):
            yield f"drift_{name}/staleness_{staleness}", numbers[name]


def _table_before(file: Path, first_update: int) -> str:
    """The header, and the rows of an earlier process that the restored checkpoint still stands for."""
    rows = read_table(file) if first_update else []
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(r for r in rows if r.get("update", "").isdecimal() and int(r["update"]) <= first_update)
    return text.getvalue()
