"""Services end in spite of the user's threads and processes, and leave no process behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no /proc or subreapers: run on Linux")
ROOT = Path(__file__).resolve().parents[3]
_SERVICE = """
import atexit, contextlib, os, signal, subprocess, sys, threading, time
from dppo_redis.errors import EnvironmentBrokenError, ExitStatus
from dppo_redis.service.ending import closing_within
from dppo_redis.service.shutdown import run_service
from workers.watchdog import CallClock, Watchdog

def simulator(*more):
    subprocess.Popen([sys.executable, "-c", "SIMULATOR", "MARK", *more], start_new_session=True)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)", "MARK"])
        os._exit(0)
    os.wait()

def main(stop):
    print("begins")
CODE
    return ExitStatus.DONE

run_service(main)
"""
_IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"


class Service:
    """A service whose main function is the given lines."""

    def __init__(self, code: str, directory: Path) -> None:
        self.mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
        lines = "".join(f"    {line}\n" for line in code.strip().splitlines())
        source = _SERVICE.replace("SIMULATOR", _IGNORES).replace("CODE", lines).replace("MARK", self.mark)
        (directory / "service.py").write_text(source)
        with (directory / "said").open("wb") as said:  # no pipe: what is left would keep it open
            self.process = subprocess.Popen(
                [sys.executable, str(directory / "service.py")],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.log = directory / "said"

    def simulators(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self.mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def has_simulators(self, count: int) -> None:
        wait_until(lambda: len(self.simulators()) == count, 20, "the simulators run")

    def ends(self, status: int) -> str:
        """Wait for it; what it said."""
        assert self.process.wait(30) == status, self.log.read_text()
        assert self.simulators() == [], self.log.read_text()
        return self.log.read_text()


@contextlib.contextmanager
def service(code: str, directory: Path) -> Iterator[Service]:
    it = Service(code, directory)
    try:
        yield it
    finally:
        for pid in (it.process.pid, *it.simulators()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        it.process.wait()


def test_neither_threads_nor_exit_handlers_nor_children_hold_a_service(tmp_path: Path) -> None:
    code = """
threading.Thread(target=time.sleep, args=(86400,)).start()
atexit.register(time.sleep, 86400)
simulator(); daemon()
time.sleep(1.0)
"""
    with service(code, tmp_path) as it:
        assert it.ends(ExitStatus.DONE) == "begins\n"


def test_a_stop_finds_children_that_ignore_it(tmp_path: Path) -> None:
    with service("simulator(); daemon(); stop.sleep(60)", tmp_path) as it:
        it.has_simulators(2)
        it.process.send_signal(signal.SIGTERM)
        it.ends(ExitStatus.DONE)


_HANGS = """
calls = CallClock()
with Watchdog(calls, 1.0, stop):
    calls.start()
    simulator(); daemon()
"""


def test_the_watchdog_ends_what_a_hanging_step_started(tmp_path: Path) -> None:
    with service(_HANGS + "    time.sleep(300)", tmp_path) as it:
        assert "did not answer" in it.ends(ExitStatus.ENVIRONMENT_BROKEN)


def test_a_native_call_that_lets_no_thread_run_is_ended_and_shown(tmp_path: Path) -> None:
    code = """
import ctypes
calls = CallClock()
with Watchdog(calls, 1.0, stop):
    calls.start()
    time.sleep(0.6)
    ctypes.PyDLL(None).sleep(300)
"""
    with service(code, tmp_path) as it:
        said = it.ends(ExitStatus.FAILED)
        assert "Timeout (" in said
        assert "in main" in said


def test_a_fault_in_native_code_leaves_its_traceback(tmp_path: Path) -> None:
    with service("import ctypes; ctypes.string_at(0)", tmp_path) as it:
        said = it.ends(-signal.SIGSEGV)
        assert "Segmentation fault" in said
        assert "in main" in said


def test_closing_has_a_limit_and_an_earlier_error_is_reported(tmp_path: Path) -> None:
    code = """
try:
    raise EnvironmentBrokenError("no licence")
finally:
    with closing_within(0.3):
        time.sleep(300)
"""
    with service(code, tmp_path) as it:
        assert "no licence" in it.ends(ExitStatus.ENVIRONMENT_BROKEN)


def test_closing_in_time_changes_nothing(tmp_path: Path) -> None:
    with service("with closing_within(0.3):\n    pass\ntime.sleep(0.5)", tmp_path) as it:
        assert it.ends(ExitStatus.DONE) == "begins\n"


@pytest.mark.parametrize("leaving", ["SystemExit(3)", "KeyboardInterrupt"])
def test_a_service_does_not_exit_with_the_status_of_the_users_code(tmp_path: Path, leaving: str) -> None:
    with service(f"raise {leaving}", tmp_path) as it:
        assert leaving.partition("(")[0] in it.ends(ExitStatus.FAILED)


def test_the_directory_of_multiprocessing_s_sockets_goes_with_the_service(tmp_path: Path) -> None:
    """A fork server listens in it; its own exit handler would not be called."""
    code = """
from multiprocessing import util
import tempfile
tempfile.tempdir = os.getcwd()
print(os.path.basename(util.get_temp_dir())[:5])
if os.fork() == 0:
    run_service(lambda stop: ExitStatus.DONE)  # the directory is its parent's
os.wait()
print(len(os.listdir()))
"""
    (tmp_path / "sockets").mkdir()
    with service(f"os.chdir({str(tmp_path / 'sockets')!r})\n" + code, tmp_path) as it:
        assert it.ends(ExitStatus.DONE) == "begins\npymp-\n1\n"
    assert list((tmp_path / "sockets").iterdir()) == []
