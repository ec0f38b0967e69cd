"""A benchmark that is stopped leaves no process and no directory behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.service.shutdown import is_alive
from ops.bench.processes import ProgramFailedError, output_of
from tests.conftest import wait_until

_PROGRAM = """
import os, subprocess, sys, time
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {daemon.pid}\\n")
time.sleep(600)
"""
_BENCHMARK = """
import sys, tempfile
from pathlib import Path
from ops.bench.processes import output_of, stoppable
with stoppable(), tempfile.TemporaryDirectory(dir=sys.argv[1]) as place:
    output_of([sys.executable, "-c", sys.argv[2], sys.argv[1] + ".pids"], Path(place))
    print("a table")
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, ExitStatus.TERMINATED), (signal.SIGINT, -signal.SIGINT), (signal.SIGHUP, 143)],
)
def test_a_stopped_benchmark_ends_its_program_and_what_that_started(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    directory, pids = tmp_path / "left", tmp_path / "left.pids"
    directory.mkdir()
    benchmark = subprocess.Popen(
        [sys.executable, "-c", _BENCHMARK, str(directory), _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # it may be ignored around here
    )
    try:
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), 30.0, "the program runs")
        assert list(directory.iterdir())
        benchmark.send_signal(number)
        printed, _ = benchmark.communicate(timeout=60)
    finally:
        benchmark.kill()
    assert benchmark.returncode == status
    assert printed == b""
    assert [pid for pid in map(int, pids.read_text().split()) if is_alive(pid)] == []
    assert list(directory.iterdir()) == []


def test_a_program_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('half a table'); sys.exit('no such knob')"]
    with pytest.raises(ProgramFailedError, match="ended with 1:\nno such knob"):
        output_of(command, tmp_path)


def test_the_output_of_a_program_is_returned(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.getcwd(), os.environ['KNOB'])"]
    assert output_of(command, tmp_path, {"KNOB": "7"}) == f"{tmp_path} 7\n"
