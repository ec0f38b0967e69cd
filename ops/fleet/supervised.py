"""`python -m ops.fleet.supervised CONFIGURATION DIRECTORY`: runs supervisord until its parent command ends.

When the command is killed, supervisord gets SIGTERM, stops the fleet in order and removes the private
DIRECTORY (sockets). When a service ends, this process records the end there for the service's next process,
and ends the processes that the service left behind, for example simulators.
"""

import contextlib
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

from supervisor import supervisord
from supervisor.process import Subprocess

from dppo_redis.errors import ExitStatus
from dppo_redis.service.descendants import adopt_orphans, descendants
from dppo_redis.service.ending import end_all
from dppo_redis.service.service_deaths import DIRECTORY_VARIABLE, file_of, read_file, was_own_end, write_file
from dppo_redis.service.shutdown import PARENT_PID_VARIABLE, die_with_parent
from ops.fleet.last_log_line import reason_in_log

_WITH_USER_CODE = (
    "actor",
    "evaluator",
    "learner",
)  # starts of the names of services that run the user's code


class _SafeStream(io.TextIOBase):
    """Standard error that ignores errors of a full disk.

    supervisord writes to standard error when it cannot write a log. An exception there would end
    supervisord and with it the fleet.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)


class EndedServices:
    """Records how each service ended, and ends the processes that the service left behind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._services: Callable[[], list[int]] | None = None  # pids of running services, after one ended

    def install(self) -> None:
        """Replace supervisord's `Subprocess.finish`, the only method that gets a process's wait status."""
        finish = Subprocess.finish

        def finish_and_record(process: Any, pid: int, wait_status: int) -> None:
            was_stopped, lived_s = process.killing, time.time() - process.laststart
            with contextlib.suppress(Exception):
                wait_status = self.true_status(
                    process.config.name, wait_status, Path(process.config.stdout_logfile)
                )
            finish(process, pid, wait_status)
            with contextlib.suppress(Exception):  # supervisord must not end
                self._services = lambda: list(process.config.options.pidhistory)
                if not was_stopped:
                    self._record_end(process.config.name, wait_status, lived_s, process.config.stdout_logfile)
                self._end_leftovers()

        Subprocess.finish = finish_and_record

    def true_status(self, service: str, wait_status: int, log: Path) -> int:
        """The wait status to record. A service that is done announces it before it exits with 0.

        Without the announcement, the user's code ended the process, and the status is ENVIRONMENT_BROKEN.
        """
        is_announced = was_own_end(self._directory, service)
        if wait_status or is_announced or not service.startswith(_WITH_USER_CODE):
            return wait_status
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write("the environment ended this process, with exit status 0\n")
        return ExitStatus.ENVIRONMENT_BROKEN << 8

    def _record_end(self, service: str, wait_status: int, lived_s: float, log: str) -> None:
        file = file_of(self._directory, service)
        write_file(file, read_file(file).after(wait_status, lived_s, reason_in_log(Path(log))))

    def _end_leftovers(self) -> None:
        """End the processes that ended services left behind. A running service adopts its own orphans."""
        if left := self._leftovers():
            # In a thread, so that supervisord does not wait. Only these pids, since a service may
            # start meanwhile.
            threading.Thread(target=_end_processes, args=(left,), name="end leftovers", daemon=True).start()

    def _leftovers(self) -> set[int]:
        if self._services is None:
            return set()
        services = set(self._services())
        return descendants() - services.union(*map(descendants, services))

    def close(self) -> None:
        """End all processes that remain after the end of the fleet."""
        end_all(self._leftovers)


def _end_processes(pids: set[int]) -> None:
    known = set(pids)

    def find() -> set[int]:
        known.update(*map(descendants, known & descendants()))
        return known & descendants()

    end_all(find)


def main(configuration: str, directory: str) -> None:
    """Run supervisord in the foreground until it receives a stop."""
    die_with_parent()
    adopt_orphans()
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())  # inherited by every service
    os.environ[DIRECTORY_VARIABLE] = directory
    sys.stderr = cast(TextIO, _SafeStream(sys.stderr))
    ended = EndedServices(Path(directory))
    ended.install()
    try:
        supervisord.main(["-n", "-c", configuration])
    finally:
        ended.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
