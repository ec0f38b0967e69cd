"""Runs on file systems that cannot lock and flush, on a full disk, and under low limits."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import ROOT, SLOW, Command, assert_nothing_left

_NETWORK_FILE_SYSTEM = """
import errno, fcntl, os, stat

def no_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

def no_flush_of_directories(descriptor, fsync=os.fsync):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    fsync(descriptor)

fcntl.flock, os.fsync = no_locks, no_flush_of_directories
"""


def _limited(limit: str, most: int) -> tuple[str, str]:
    """A program that sets a limit and then runs `dppo-redis`."""
    code = (
        f"import os, resource, sys; resource.setrlimit(resource.{limit}, ({most}, {most})); "
        "os.execv(sys.executable, [sys.executable, '-m', 'ops', *sys.argv[1:]])"
    )
    return "-c", code


def test_a_run_completes_without_locks_and_flushes_and_with_few_open_files_and_warns_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_NETWORK_FILE_SYSTEM)
    line = ["train", *SLOW, "--total-steps", "1000", "--run-dir", "run", "--checkpoint.keep", "2", "--json"]
    environment = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    with Command(
        *line, cwd=tmp_path, environment=environment, program=_limited("RLIMIT_NOFILE", 200)
    ) as command:
        command.wait_for_output("training: ", 60)
        with Command(*line, "--overwrite", cwd=tmp_path, environment=environment) as second:
            assert second.wait(30) == ExitStatus.CONFIGURATION
            assert "in use by a living run" in second.err
        assert command.wait(60) == ExitStatus.DONE, command.err
        warnings = command.summary()["warnings"]
        assert [text for text in warnings if not text.startswith("saving a checkpoint took")] == []
        assert command.err.count("has no locks") == 1
        assert_nothing_left(command)
    log = (tmp_path / "run" / "logs" / "learner.log").read_text()
    assert (log.count("cannot flush"), "ERROR" in log) == (1, False)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


def test_too_few_open_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    line = ["train", "CartPole-v1", "--run-dir", "run", "--actors", "20"]
    with Command(*line, cwd=tmp_path, program=_limited("RLIMIT_NOFILE", 100)) as command:
        assert command.wait(30) == ExitStatus.CONFIGURATION, command.err
        (line_of_error,) = command.error_lines
    assert "this fleet needs " in line_of_error
    assert "but 100 open files are allowed (ulimit -n)" in line_of_error
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"a tmpfs cannot be mounted ({answer.stderr.strip()}): run as root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.privileged
def test_a_full_disk_at_the_end_is_reported_and_the_run_can_be_resumed_later(
    small_disk: Path,
) -> None:
    line = ["train", *SLOW, "--total-steps", "2000", "--run-dir", "run", "--resume", "auto", "--json"]
    ballast = small_disk / "ballast"
    with Command(*line, cwd=small_disk) as command:
        command.wait_for_output("training: ", 60)
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert command.wait(60) == ExitStatus.IO_ERROR, command.err
        summary = command.summary()
        assert_nothing_left(command)
    assert summary["reason"] == "unsaved"
    assert any("No space left on device" in text for text in summary["warnings"])
    ballast.unlink()
    with Command(*line, cwd=small_disk) as command:
        assert command.wait(60) == ExitStatus.DONE, command.err
        assert command.summary()["reason"] == "total_steps"
    assert "resuming at update" in (small_disk / "run" / "logs" / "learner.log").read_text()


@pytest.mark.privileged
def test_too_few_processes_are_refused_for_a_user_that_the_limit_binds() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user cannot be tried: run as root, with setpriv")
    code = (
        "import resource; from ops.fleet.machine_limits import FleetNeeds, check_limits; "
        "resource.setrlimit(resource.RLIMIT_NPROC, (20, 20)); check_limits(FleetNeeds(64, 60))"
    )
    answer = subprocess.run(
        ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "PermissionError" in answer.stderr or "ModuleNotFoundError" in answer.stderr:
        pytest.skip("another user cannot read this checkout: move it below /tmp")
    assert "60 processes and threads, but 20 are allowed (ulimit -u)" in answer.stderr
