"""Writes one record per update to metrics.csv and to TensorBoard's files. The loop writes them to Redis."""

import csv
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.report_fields import from_fields, names, to_fields, with_present_names
from dppo_redis.protocol.reports import UpdateRecord
from dppo_redis.service.files import read_rows, split_row, whole_lines_backwards
from dppo_redis.service.logs import RateLimit
from learner.ppo.update import UpdateReport
from learner.tensorboard_file import TensorBoardFile

_log = logging.getLogger("dppo")


def make_record(report: UpdateReport, **values: int | float | dict[str, float] | None) -> UpdateRecord:
    """A record from an update's report and the loop's own numbers."""
    numbers = asdict(report)
    whole, by_staleness = numbers.pop("drift"), numbers.pop("drift_by_staleness")
    del whole["rows"], numbers["gamma"], numbers["episode_steps"]  # known from the batch and the settings
    return UpdateRecord(
        **numbers,
        **{f"drift_{name}": number for name, number in whole.items()},
        drift_by_staleness=json.dumps(_rounded(by_staleness)),
        **values,  # type: ignore[arg-type]
    )


def _rounded(by_staleness: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    return {age: {name: round(number, 6) for name, number in of.items()} for age, of in by_staleness.items()}


class MetricsFiles:
    """Appends records to a run directory; a resumed run continues after the rows of its checkpoint.

    If the disk refuses, this logs an error and tries again with the next record; no old row is lost.
    It reads only the rows after the checkpoint, from the end of the file: a run may have a million rows.
    """

    def __init__(self, directory: Path, first_update: int) -> None:
        self._file = RunFiles(directory).metrics
        self._kept_bytes, steps = _kept_until(self._file, first_update)
        # Hides the curves that an earlier process wrote after the checkpoint.
        purged_step = steps + 1 if steps else 0
        self._tensorboard = TensorBoardFile(RunFiles(directory).tensorboard, purged_step)
        self._csv: TextIO | None = None
        self._rate_limit = RateLimit()
        self.failure = ""  # the reason why rows are missing; empty if none are
        with self._disk_errors_logged():
            self._open_table()

    def write(self, record: UpdateRecord) -> None:
        """Append one record."""
        with self._disk_errors_logged():
            csv.DictWriter(self._open_table(), names(UpdateRecord), extrasaction="ignore").writerow(
                to_fields(record)
            )
            self._tensorboard.write(record)

    def close(self) -> None:
        """Flush and close the files."""
        for file in (self._csv, self._tensorboard):
            try:
                if file is not None:
                    file.close()
            except OSError as error:
                _log.error("the last metrics are lost: %s", error)

    def _open_table(self) -> TextIO:
        """The open csv file; before the first new row, old rows after the checkpoint are cut off."""
        if self._csv is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._kept_bytes = _cut(self._file, self._kept_bytes)
            self._csv = self._file.open("a", newline="", encoding="utf-8", buffering=1)
        return self._csv

    @contextmanager
    def _disk_errors_logged(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = f"{self._file.name} or the curves of TensorBoard lack rows: {error}"
            if self._rate_limit.due():
                _log.error("cannot write metrics: %s", error)


def _kept_until(file: Path, update: int) -> tuple[int, int]:
    """Bytes of a table's rows up to the checkpoint of `update`, and the trained steps at their end."""
    if update == 0 or not file.exists():
        return 0, 0
    header = next(read_rows(file), [])
    begins_with_update = header[:1] == names(UpdateRecord)[:1]
    for end, line in whole_lines_backwards(file):
        number = line.split(",", 1)[0]
        if begins_with_update and number.isdecimal() and int(number) > update:
            continue  # if the checkpoint is old, most rows end here
        row = split_row(line)
        if len(row) != len(header):
            continue
        record = from_fields(UpdateRecord, dict(zip(header, row, strict=True)))
        if 0 < record.update <= update and record.trained_steps > 0:
            return end, record.trained_steps
    return 0, 0


def _cut(file: Path, kept_bytes: int) -> int:
    """Cut a table to `kept_bytes`, rewritten if another release wrote other columns; returns the new size.

    Raises:
        OSError: the disk refuses; the rows to keep are unchanged.
    """
    columns = names(UpdateRecord)
    if kept_bytes and next(read_rows(file), []) == columns:
        os.truncate(file, kept_bytes)
        return kept_bytes
    temporary = file.with_name(f"{file.name}.writing")
    try:
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(_rows_within(file, kept_bytes))
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return file.stat().st_size


def _rows_within(file: Path, size: int) -> Iterator[dict[str, str]]:
    """The complete rows in the first `size` bytes of a table."""
    if size:
        rows = read_rows(file, size)
        header = next(rows)
        for row in rows:
            yield dict(with_present_names(UpdateRecord, dict(zip(header, row, strict=True))))
