"""What a service did, as JSON lines in a file: who made, took and read which rollout and weights.

For proving afterwards that nothing was lost, doubled or mixed up (`tests/chaos/checker.py`). Off
unless a service is started with `--event-log FILE`. One write per line, so kill -9 tears the last at most.
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
    """Appends events to a file; without a file it does nothing."""

    def __init__(self, file: Path | None = None, service: str = "") -> None:
        """Raises ConfigurationError where the file cannot be opened."""
        self._who = {"service": service, "process": f"{os.getpid()}.{time.time_ns()}"}
        self._missed = 0  # events that a full disk refused
        self._lock = threading.Lock()
        self._descriptor = -1 if file is None else _open(file)

    @property
    def is_on(self) -> bool:
        """Whether events are kept: what only they need is computed only then."""
        return self._descriptor >= 0

    def write(self, event: str, **values: Any) -> None:
        """Append one event. If events were lost, the next event says so: such a log proves nothing."""
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
    """Sixteen hex digits of the names and values of arrays of any shape; sender and reader get the same."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()[:16]


def _open(file: Path) -> int:
    """Open for appending; what a killed process left of a line is ended."""
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
    """Entry ids are bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise TypeError(f"{type(value).__name__} in an event log")
