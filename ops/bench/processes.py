"""Runs the programs that benchmarks compare. A stopped benchmark leaves no process or directory behind."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from dppo_redis.errors import DppoError, ExitStatus
from dppo_redis.service.descendants import adopt_orphans, descendants
from dppo_redis.service.ending import end_all

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_END_S = 30.0  # in which a fleet ends by itself after SIGTERM
_ORPHANS_S = 5.0  # the same for processes that outlive the program which started them


class ProgramFailedError(DppoError):
    """A program of a benchmark ended with an error."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP end the benchmark like Ctrl-C. At its end it has no descendants left."""
    adopt_orphans()
    others = descendants()
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if previous[number] is not signal.SIG_IGN:  # by `nohup`, say
            signal.signal(number, _stop)
    try:
        yield
    finally:
        _end_descendants(others)
        adopt_orphans(False)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: FrameType | None) -> None:
    for one in _SIGNALS:  # cleaning up is not interrupted again
        signal.signal(one, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(ExitStatus.TERMINATED)


def output_of(command: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end, and return what it printed.

    If this process is stopped meanwhile, the program gets SIGTERM and time to end, with all that it started.

    Raises:
        ProgramFailedError: it ended with another status than 0; the message has the end of its error output.
    """
    others = descendants()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=None if environment is None else {**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C reaches it as SIGTERM, once, from here
        )
        try:
            printed, _ = process.communicate()
        except BaseException:
            _end(process)
            _end_descendants(others)
            raise
        if process.returncode != 0:
            errors.seek(0)
            said = errors.read()[-2000:]
            raise ProgramFailedError(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
        return printed


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)  # its output is not awaited: what it started may hold the pipe
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _end_descendants(others: set[int]) -> None:
    """End and reap all descendants of this process but `others`."""
    found = descendants() - others
    end_all(lambda: descendants() - others, _ORPHANS_S)
    for pid in found:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
