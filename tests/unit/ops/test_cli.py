"""Answers of the command itself: unknown words, odd paths, closed streams, signals."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.service.shutdown import StopRequest
from ops.cli import main

ROOT = Path(__file__).resolve().parents[3]
LONG = 300 * "x"


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "argv",
    [
        ("evaluate", LONG),
        ("plot", LONG),
        ("export", LONG, "--to", "there"),
        ("train", "--resume", "--run-dir", LONG),
        ("train", "CartPole-v1", "--run-dir", LONG),
        ("train", "CartPole-v1", "--init-from", LONG),
        ("train", "CartPole-v1", "--config", LONG),
    ],
    ids=lambda argv: " ".join(word for word in argv if word != LONG),
)
def test_an_impossible_path_is_refused_in_one_line(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitStatus.CONFIGURATION
    error = capsys.readouterr().err.strip()
    assert error.startswith("dppo-redis: ")
    assert os.strerror(errno.ENAMETOOLONG) in error
    assert len(error.splitlines()) == 1


def test_a_flag_with_a_value_is_a_mistake_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--resume=true"]) == ExitStatus.CONFIGURATION
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("trian", "did you mean train? commands: train, serial,"),
        ("zzz", "no command 'zzz'; commands: train, serial,"),
        ("--env", "no command '--env'; write a command first: train, serial,"),
        ("CartPole-v1", "did you mean dppo-redis train CartPole-v1?"),
        ("mine:Walk", "did you mean dppo-redis train mine:Walk?"),
    ],
)
def test_an_unknown_command_is_refused_with_a_suggestion(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == ExitStatus.CONFIGURATION
    assert meant in capsys.readouterr().err


def run(redirections: str, *argv: str) -> subprocess.CompletedProcess[str]:
    script = f'exec "$@" {redirections}'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "ops", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_closed_streams_do_no_harm() -> None:
    assert run("<&- >&-", "acl", "--help").returncode == ExitStatus.DONE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full: run on Linux")
def test_an_error_of_the_output_is_reported_in_one_line() -> None:
    answer = run(">/dev/full", "--help")
    assert answer.returncode == ExitStatus.FAILED
    assert answer.stderr == f"dppo-redis: {os.strerror(errno.ENOSPC)}\n"


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup sets it
    stop = StopRequest().install()
    signal.raise_signal(signal.SIGHUP)
    assert not stop.requested


def test_a_path_that_supervisord_cannot_hold_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "the #1"
    kept = directory / "checkpoints" / "checkpoint-000000001.pt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    (directory / "run.json").write_text('{"run": "old"}')
    assert main(["train", "CartPole-v1", "--overwrite", "--run-dir", str(directory)]) == 78
    assert kept.exists()


def test_a_command_that_gets_a_stop_while_it_waits_for_redis_reports_it() -> None:
    command = [sys.executable, "-m", "ops", "train", "CartPole-v1", "--redis", "redis://127.0.0.1:1"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "waiting to reach" in process.stderr.readline()
    process.terminate()
    assert process.wait(20) == ExitStatus.TERMINATED
    process.stderr.close()
