"""The curves in TensorBoard's files: what metrics.csv holds, under the names that people look for."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from dppo_redis.logs import Rarely

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


class Board:
    """Writes curves. TensorBoard's writer is of no use once the disk has refused it: another is begun."""

    def __init__(self, directory: Path, purged_step: int, pause_s: float = 10.0) -> None:
        """Nothing is written yet; what earlier files hold from `purged_step` on is hidden."""
        self._directory = directory
        self._purged_step: int | None = purged_step
        self._writer: SummaryWriter | None = None
        self._beginnings = Rarely(pause_s)
        self._evaluated: Any = None

    def write(self, values: Mapping[str, Any]) -> None:
        """Add the values of one update, by their names in metrics.csv.

        Raises:
            OSError: the disk refuses; for a while nothing is written, then it is tried again.
        """
        if self._writer is None and not self._beginnings.due():
            return
        try:
            self._write(self._begun(), values)
        except OSError:
            self._writer = None
            raise

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()

    def _begun(self) -> SummaryWriter:
        if self._writer is None:
            self._writer = SummaryWriter(str(self._directory), purge_step=self._purged_step)
            self._purged_step = None
        return self._writer

    def _write(self, writer: SummaryWriter, values: Mapping[str, Any]) -> None:
        for tag, value in _curves(values):
            writer.add_scalar(tag, value, values["trained_steps"])
        played = values["evaluation_steps"]
        if played is not None and played != self._evaluated:
            self._evaluated = played
            writer.add_scalar("return/evaluation", values["evaluation_return"], played)


def _curves(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """TensorBoard's tags and numbers; also one curve for each age of the data."""
    for name, tag in _TAGS.items():
        if values[name] is not None:
            yield tag, values[name]
    for staleness, numbers in json.loads(values["drift_by_staleness"]).items():
        for name in ("ratio", "kl", "clip_fraction", "effective_share"):
            yield f"drift_{name}/staleness_{staleness}", numbers[name]
