"""The tests' own processes: they end with the tests, and do not inherit ignored signals."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.conftest import wait_until
from tests.e2e.support import ROOT

_RUNNER = """
import sys, time
from pathlib import Path
from tests.e2e.support import SLOW, Command
command = Command("train", *SLOW, cwd=Path(sys.argv[1]))
command.wait_for_output("training: ", 60)
print(command.process.pid, flush=True)
time.sleep(600)
"""


def has_ended(pid: int) -> bool:
    """Whether the process has ended; a zombie counts as ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_fleet_ends_with_the_tests_that_were_killed(tmp_path: Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", _RUNNER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    with runner:
        fleet = int(runner.stdout.readline())
        runner.kill()
    wait_until(lambda: has_ended(fleet), 30, "the fleet has ended")


def test_signals_that_the_parent_ignores_reach_the_commands_of_tests() -> None:
    handlers = "signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)"
    code = f"import signal, tests.conftest; print(signal.SIG_IGN in ({handlers}))"
    shell = f'trap "" HUP INT; exec "{sys.executable}" -c "{code}"'
    answer = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
