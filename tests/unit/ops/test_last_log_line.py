"""The reason for a service's end, from the service's log."""

import subprocess
import sys
from pathlib import Path

import pytest

from ops.fleet.last_log_line import reason_in_log

_LINE = "2026-12-01 08:36:32,829 actor {} {}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (_LINE.format("INFO", "begins") + _LINE.format("ERROR", "no licence: ask\n\n"), "no licence: ask"),
        (_LINE.format("ERROR", "raised") + "Traceback\n  File x\nValueError: none\n", "ValueError: none"),
    ],
)
def test_the_reason_is_the_last_line_without_date_and_level(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "log").write_text(text)
    assert reason_in_log(tmp_path / "log") == words


def test_without_a_log_there_is_no_reason(tmp_path: Path) -> None:
    assert reason_in_log(tmp_path / "none") == ""


def fault(directory: Path, code: str) -> Path:
    """The log of a program that prints a line and then ends with this code."""
    program = "import faulthandler, ctypes, time\nfaulthandler.enable()\n"
    program += f"def simulate():\n    {code}\nsimulate()\n"
    (directory / "program.py").write_text(program)
    log = directory / "log"
    log.write_text(_LINE.format("INFO", "begins"))
    with log.open("ab") as stream:
        subprocess.run([sys.executable, str(directory / "program.py")], stderr=stream, check=False)
    return log


def test_a_crash_of_native_code_is_named_with_its_place(tmp_path: Path) -> None:
    reason = reason_in_log(fault(tmp_path, "faulthandler._sigsegv()"))
    assert reason == f"Segmentation fault, in simulate ({tmp_path / 'program.py'}, line 4)"


def test_a_call_that_blocks_all_threads_is_named(tmp_path: Path) -> None:
    code = "faulthandler.dump_traceback_later(0.2, exit=True); ctypes.PyDLL(None).sleep(60)"
    assert "native call" in reason_in_log(fault(tmp_path, code))


def test_an_older_crash_is_not_the_reason(tmp_path: Path) -> None:
    log = fault(tmp_path, "faulthandler._sigsegv()")
    with log.open("a") as stream:
        stream.write(_LINE.format("ERROR", "no licence"))
    assert reason_in_log(log) == "no licence"
