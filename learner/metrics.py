"""One record per update, where people look at it: metrics.csv and TensorBoard.

Files only; what goes to Redis is the loop's business.
"""

import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.report_fields import from_fields, names, to_fields
from dppo_redis.protocol.reports import UpdateRecord
from dppo_redis.service.files import read_table, write_aside
from dppo_redis.service.logs import Rarely
from learner.ppo.update import UpdateReport
from learner.tensorboard_file import Board

_log = logging.getLogger("dppo")


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
        self._file = RunFiles(directory).metrics
        self._kept = _rows_until(self._file, first_update)
        # What an earlier process wrote after the checkpoint is hidden.
        purged_step = from_fields(UpdateRecord, self._kept[-1]).trained_steps + 1 if self._kept else 0
        self._board = Board(RunFiles(directory).tensorboard, purged_step)
        self._csv: TextIO | None = None
        self._rarely = Rarely()
        self.failure = ""  # why rows are missing, if any are
        with self._forgiven():
            self._begun()

    def write(self, record: UpdateRecord) -> None:
        """Add one record."""
        with self._forgiven():
            csv.DictWriter(self._begun(), names(UpdateRecord)).writerow(to_fields(record))
            self._board.write(record)

    def close(self) -> None:
        """Flush and close."""
        for file in (self._csv, self._board):
            try:
                if file is not None:
                    file.close()
            except OSError as error:
                _log.error("the last metrics are lost: %s", error)

    def _begun(self) -> TextIO:
        """The table, put right before its first new row."""
        if self._csv is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_aside(self._file, _as_csv(self._kept).encode())
            self._csv = self._file.open("a", newline="", encoding="utf-8", buffering=1)
        return self._csv

    @contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = f"{self._file.name} or the curves of TensorBoard lack rows: {error}"
            if self._rarely.due():
                _log.error("cannot write metrics: %s", error)


def _rows_until(file: Path, update: int) -> list[dict[str, str]]:
    """The rows of an earlier process that the restored checkpoint still stands for."""
    rows = [(row, from_fields(UpdateRecord, row)) for row in (read_table(file) if update else [])]
    return [row for row, record in rows if 0 < record.update <= update and record.trained_steps > 0]


def _as_csv(rows: Iterable[Mapping[str, str]]) -> str:
    """Under today's columns, as another release may have had others."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names(UpdateRecord), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
