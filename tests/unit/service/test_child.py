"""The user's code in a child of a command: its answer, its errors and its damage."""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from dppo_redis.errors import (
    ConfigurationError,
    EnvironmentBrokenError,
    EnvironmentHangsError,
    StoppedError,
)
from dppo_redis.service import user_code
from dppo_redis.service.child import ask_child
from dppo_redis.service.shutdown import StopRequest
from tests.conftest import wait_until

LONG_S = 100_000


def ask(answer: Callable[[], Any], limit_s: float = 20.0, stop: StopRequest | None = None) -> Any:
    def work() -> AbstractContextManager[Any]:
        return nullcontext(answer())

    return ask_child("it", work, limit_s=limit_s, knob="--limit", stop=stop)


def native_sleep() -> None:
    """Holds the interpreter's lock."""
    ctypes.PyDLL(None).sleep(LONG_S)


def crash() -> None:
    ctypes.string_at(0)


def leave_without_files() -> None:
    os.closerange(3, 256)
    os._exit(0)


def sleepers() -> list[psutil.Process]:
    """Below this process, however they got there, those that sleep for LONG_S; not those that have ended."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if str(LONG_S) in process.cmdline():
                found.append(process)
    return found


def start_simulators() -> int:
    """One as a child, one in a session of its own, one whose parent has ended."""
    subprocess.Popen(["sleep", str(LONG_S)])
    subprocess.Popen(["sleep", str(LONG_S)], start_new_session=True)
    subprocess.run(["sh", "-c", f"sleep {LONG_S} & exit 0"], check=True, start_new_session=True)
    wait_until(lambda: len(sleepers()) == 3, 10, "all sleep")
    return len(sleepers())


def test_the_answer_comes_back() -> None:
    assert ask(lambda: {"spaces": [1, 2]}) == {"spaces": [1, 2]}
    assert ask(os.getpid) != os.getpid()


def test_an_answer_larger_than_a_pipe_comes_back() -> None:
    assert len(ask(lambda: b"x" * 1_000_000)) == 1_000_000


@pytest.mark.parametrize("kind", [ConfigurationError, EnvironmentBrokenError])
def test_an_error_of_ours_comes_back_as_what_it_is(kind: type[Exception]) -> None:
    def refuse() -> NoReturn:
        raise kind("no such thing")

    with pytest.raises(kind, match=r"^no such thing$"):
        ask(refuse)


def test_a_path_that_cannot_be_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ask(lambda: Path("/no/such/file").read_bytes())
    assert caught.value.filename == "/no/such/file"


@pytest.mark.parametrize(
    "error", [ValueError("wild"), KeyboardInterrupt("wild"), SystemExit("wild")], ids=repr
)
def test_any_other_error_comes_back_with_its_traceback(error: BaseException) -> None:
    def raise_it() -> NoReturn:
        raise error

    with pytest.raises(EnvironmentBrokenError, match=f"it raised {type(error).__name__}: wild") as caught:
        ask(raise_it)
    assert "in raise_it" in str(caught.value.__cause__)


@pytest.mark.parametrize("hang", [lambda: time.sleep(LONG_S), native_sleep], ids=["sleep", "native call"])
def test_a_hanging_child_is_killed_at_the_limit_and_its_traceback_logged(
    hang: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentHangsError, match=r"it has not answered for 1 s.*--limit"):
        ask(hang, limit_s=1.0)
    assert time.monotonic() - began < 5
    assert "most recent call first" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (crash, "killed by SIGSEGV"),
        (lambda: os._exit(3), "exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
        (leave_without_files, "exit status 0"),
    ],
    ids=["segmentation fault", "exit", "killed", "closes all files"],
)
def test_a_child_that_dies_is_named_with_how(end: Callable[[], Any], says: str) -> None:
    with pytest.raises(EnvironmentBrokenError, match=says):
        ask(end)


def test_a_stop_ends_the_wait_and_the_child() -> None:
    stop = StopRequest()
    threading.Timer(0.3, stop.request).start()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        ask(native_sleep, limit_s=LONG_S, stop=stop)
    assert time.monotonic() - began < 5


def take_signals_over() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(LONG_S,)).start()
    os.chdir("/")


def test_signals_threads_and_the_working_directory_stay_in_the_child() -> None:
    before = (Path.cwd(), signal.getsignal(signal.SIGTERM), threading.active_count())
    assert ask(take_signals_over) is None
    assert (Path.cwd(), signal.getsignal(signal.SIGTERM), threading.active_count()) == before


def hang_beside_simulators() -> None:
    start_simulators()
    time.sleep(LONG_S)


def crash_beside_simulators() -> None:
    start_simulators()
    crash()


def test_processes_that_the_child_started_end_with_it() -> None:
    assert ask(start_simulators) == 3
    wait_until(lambda: not sleepers(), 10, "no simulator is left")


@pytest.mark.parametrize("end", [hang_beside_simulators, crash_beside_simulators])
def test_processes_that_the_child_started_end_with_it_in_every_kind_of_end(end: Callable[[], None]) -> None:
    with pytest.raises(EnvironmentBrokenError):
        ask(end, limit_s=2.0)
    wait_until(lambda: not sleepers(), 10, "no simulator is left")


@contextlib.contextmanager
def hangs_in_closing() -> Iterator[str]:
    yield "answer"
    time.sleep(LONG_S)


def test_closing_may_take_two_seconds_and_no_longer() -> None:
    began = time.monotonic()
    assert ask_child("it", hangs_in_closing, limit_s=60) == "answer"
    assert 1.5 < time.monotonic() - began < 8


def test_standard_output_is_for_what_the_command_says(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        os.write(1, b"a banner\n")
        assert os.read(0, 1) == b""  # what is typed is not for it

    ask(talk)
    shown = capfd.readouterr()
    assert (shown.out, "a banner" in shown.err) == ("", True)


def test_the_guard_of_a_command_takes_no_notice_of_the_child() -> None:
    def enter() -> bool:
        user_code.enter()
        user_code.announce_end(3)
        return user_code.is_inside()

    before = user_code.announced_status()
    assert ask(enter)
    assert (user_code.is_inside(), user_code.announced_status()) == (False, before)
