"""Which epochs and versions of a run are used up, in a file of its directory.

It outlives a learner that was killed while the server lost everything, when nobody else knows what was
published after the last checkpoint. Written before what it covers is published; versions in advance, so
that it costs a write in a hundred publications, and a killed learner leaves out as many at most.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from dppo_redis.files import write_aside
from dppo_redis.logs import Rarely

_AT_ONCE = 100
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class Used:
    """The highest that may have been published."""

    epoch: int = 0
    version: int = 0


class UsedFile:
    """The file of one learner process; without a path nothing is kept."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._covered = Used()
        self._rarely = Rarely()

    def read(self) -> Used:
        """What a predecessor may have used; nothing where the file is gone or damaged."""
        if self._file is None or not self._file.exists():
            return Used()
        try:
            values = json.loads(self._file.read_text())
            return Used(int(values["epoch"]), int(values["version"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s is unreadable, versions go on from checkpoint and server: %s", self._file, error)
            return Used()

    def cover(self, epoch: int, version: int) -> None:
        """A publication is about to be made."""
        if epoch > self._covered.epoch or version > self._covered.version:
            found = self.read()
            self._write(Used(max(found.epoch, epoch), max(found.version, version + _AT_ONCE - 1)))

    def give_back(self, version: int) -> None:
        """A clean end: nothing beyond `version` was used, unless a successor has written meanwhile."""
        if self.read() == self._covered != Used():
            self._write(Used(self._covered.epoch, version))

    def _write(self, used: Used) -> None:
        if self._file is None:
            return
        try:
            write_aside(self._file, json.dumps(asdict(used)).encode())
            self._covered = used
        except OSError as error:  # publishing matters more
            if self._rarely.due():
                _log.error("cannot note which versions are used: %s", error)
