"""Writes the numbers of metrics.csv as curves into TensorBoard's files, under the names common there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dppo_redis.protocol.report_fields import curves
from dppo_redis.protocol.reports import UpdateRecord
from dppo_redis.service.logs import RateLimit

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardFile:
    """Writes curves. TensorBoard's writer is useless after a disk error, so a new one replaces it."""

    def __init__(self, directory: Path, purged_step: int, pause_s: float = 10.0) -> None:
        """Writes nothing yet. Earlier files' points from `purged_step` on will be hidden."""
        self._directory = directory
        self._purged_step: int | None = purged_step
        self._writer: SummaryWriter | None = None
        self._beginnings = RateLimit(pause_s)
        self._evaluated: int | None = None

    def write(self, record: UpdateRecord) -> None:
        """Add the values of one update.

        Raises:
            OSError: the disk refuses; for `pause_s` seconds nothing is written, then it is tried again.
        """
        if self._writer is None and not self._beginnings.due():
            return
        try:
            self._write(self._open_writer(), record)
        except OSError:
            self._writer = None
            raise

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self) -> "SummaryWriter":
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow: not before the first update

            self._writer = SummaryWriter(str(self._directory), purge_step=self._purged_step)
            self._purged_step = None
        return self._writer

    def _write(self, writer: "SummaryWriter", record: UpdateRecord) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # slow, too

        # All curves in one event: one event per curve took a tenth of a small update's computing time.
        metrics = ((f"environment/{name}", mean) for name, mean in record.metrics.items())
        numbers = (*curves(record), *_curves_by_staleness(record), *metrics)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers]
        assert writer.file_writer is not None
        writer.file_writer.add_summary(Summary(value=values), record.trained_steps)
        played = record.evaluation_steps
        if played is not None and played != self._evaluated:
            self._evaluated = played
            writer.add_scalar("return/evaluation", record.evaluation_return, played)


def _curves_by_staleness(record: UpdateRecord) -> Iterator[tuple[str, float]]:
    """Tags and numbers of one curve for each staleness."""
    for staleness, numbers in json.loads(record.drift_by_staleness).items():
        for name in ("ratio", "kl", "clip_fraction", "effective_share"):
            yield f"drift_{name}/staleness_{staleness}", numbers[name]
