"""The event log: JSON lines that record which service made, took or read which rollout and weights.

`tests/chaos/checker.py` reads it to prove that no rollout was lost, doubled or mixed up. A service writes it
if it was started with `--event-log FILE`. Each line is one write, so kill -9 cuts at most the last line.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dppo_redis.errors import ConfigurationError

_log = logging.getLogger("dppo")


class EventLog:
    """Appends events to a file. Without a file it does nothing."""

    def __init__(self, file: Path | None = None, service: str = "") -> None:
        """Open `file` for appending; None: write no events.

        Raises:
            ConfigurationError: the file cannot be opened.
        """
        self._who = {"service": service, "process": f"{os.getpid()}.{time.time_ns()}"}
        self._missed = 0  # events that a full disk refused
        self._lock = threading.Lock()
        self._descriptor = -1 if file is None else _open(file)

    @property
    def is_on(self) -> bool:
        """Whether events are written; callers compute digests only then."""
        return self._descriptor >= 0

    def write(self, event: str, **values: Any) -> None:
        """Append one event, with the number of events lost before it: a log with gaps proves nothing."""
        if self._descriptor < 0:
            return
        with self._lock:  # the keeper and the loop write at the same time
            record = {"event": event, "time": time.time_ns() / 1e9, **self._who, **values}
            if self._missed:
                record["missed"] = self._missed
            line = json.dumps(record, separators=(",", ":"), default=_plain).encode() + b"\n"
            try:
                complete = os.write(self._descriptor, line) == len(line)
            except OSError as error:
                _log.error("cannot write the event log: %s", error)
                complete = False
            self._missed = 0 if complete else self._missed + 1


NO_EVENT_LOG = EventLog()


def arrays_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Digest (16 hex digits) of names and values of arrays of any shape, equal for sender and reader."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()[:16]


def _open(file: Path) -> int:
    """Open for appending. If a killed process left an incomplete line, end that line first."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write the event log {file}: {error.strerror}") from error
    return descriptor


def _plain(value: Any) -> str:
    """The text of an entry id, which is bytes; JSON has no bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise TypeError(f"{type(value).__name__} in an event log")
