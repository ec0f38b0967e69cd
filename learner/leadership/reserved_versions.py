"""Records the highest used epoch and version of a run in a file of its directory (`used.json`).

If a learner is killed and the server loses its data, only this file knows which versions were published
after the last checkpoint. A learner writes it before it publishes. It reserves a hundred versions at a time,
so that a hundred publications cost one write; a killed learner leaves at most a hundred versions unused. The
class has no lock: callers hold the fence's lock when they publish, and only the loop's thread reads the file
before the learner leads and gives versions back after the keeper has ended.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from dppo_redis.service.files import write_atomically
from dppo_redis.service.logs import RateLimit

_AT_ONCE = 100
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class HighestReserved:
    """The highest epoch and version that a learner may have published."""

    epoch: int = 0
    version: int = 0


class ReservedVersions:
    """The file of used epochs and versions; without a path nothing is recorded."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._covered = HighestReserved()
        self._rate_limit = RateLimit()

    def read(self) -> HighestReserved:
        """Epoch and version that an earlier learner may have used; 0 if the file is missing or damaged."""
        if self._file is None or not self._file.exists():
            return HighestReserved()
        try:
            values = json.loads(self._file.read_text())
            return HighestReserved(int(values["epoch"]), int(values["version"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning(
                "%s is unreadable: version numbers continue from the checkpoint and the server: %s",
                self._file,
                error,
            )
            return HighestReserved()

    def cover(self, epoch: int, version: int) -> None:
        """Reserve this epoch and version before they are published."""
        if epoch > self._covered.epoch or version > self._covered.version:
            found = self.read()
            self._write(HighestReserved(max(found.epoch, epoch), max(found.version, version + _AT_ONCE - 1)))

    def give_back(self, version: int) -> None:
        """Free all versions above `version` at a clean end, unless another learner has written the file."""
        if self.read() == self._covered != HighestReserved():
            self._write(HighestReserved(self._covered.epoch, version))

    def _write(self, used: HighestReserved) -> None:
        if self._file is None:
            return
        try:
            write_atomically(self._file, json.dumps(asdict(used)).encode())
            self._covered = used
        except OSError as error:  # a publication must not fail because of this file
            if self._rate_limit.due():
                _log.error("cannot record which versions are used: %s", error)
