"""Which epochs and versions of a run are used up, in a file of its directory (`used.json`).

It outlives a learner that was killed while the server lost everything: then nothing else knows what was
published after the last checkpoint. It is written before what it covers is published. Versions are
reserved a hundred at a time, so that a hundred publications cost one write; a killed learner leaves out at
most as many. It has no lock of its own: publishing holds the fence's lock, and the loop's thread alone reads
it before it leads and gives versions back after the keeper has ended.
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
    """The highest that may have been published."""

    epoch: int = 0
    version: int = 0


class ReservedVersions:
    """The file as one learner process reads and writes it; without a path nothing is kept."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._covered = HighestReserved()
        self._rate_limit = RateLimit()

    def read(self) -> HighestReserved:
        """What a predecessor may have used; nothing where the file is gone or damaged."""
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
        """A publication is about to be made."""
        if epoch > self._covered.epoch or version > self._covered.version:
            found = self.read()
            self._write(HighestReserved(max(found.epoch, epoch), max(found.version, version + _AT_ONCE - 1)))

    def give_back(self, version: int) -> None:
        """A clean end: nothing beyond `version` was used, unless a successor has written meanwhile."""
        if self.read() == self._covered != HighestReserved():
            self._write(HighestReserved(self._covered.epoch, version))

    def _write(self, used: HighestReserved) -> None:
        if self._file is None:
            return
        try:
            write_atomically(self._file, json.dumps(asdict(used)).encode())
            self._covered = used
        except OSError as error:  # publishing matters more
            if self._rate_limit.due():
                _log.error("cannot record which versions are used: %s", error)
