"""The lock of a run's directory: its holder, refusals and waiting."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError, StoppedError
from dppo_redis.service.shutdown import StopRequest
from ops.fleet import run_lock
from ops.fleet.run_lock import HolderLiveness, LockHolder, Process, read_holder, sign, take

OWN = Process.of(os.getpid())
GONE = Process(OWN.pid, "1")  # another process has its pid now


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def holder(command: Process, fleet: Process | None = None, host: str | None = None) -> LockHolder:
    return LockHolder("run", host or socket.gethostname(), command, fleet)


class TestLife:
    def test_a_later_process_with_the_same_pid_is_not_the_holder(self) -> None:
        assert holder(OWN).liveness() is HolderLiveness.COMMAND
        assert holder(GONE).liveness() is HolderLiveness.NONE
        assert holder(GONE, fleet=OWN).liveness() is HolderLiveness.FLEET
        assert holder(OWN, host="elsewhere").liveness() is HolderLiveness.UNKNOWN

    def test_a_zombie_counts_as_ended(self, sleeper: subprocess.Popen[bytes]) -> None:
        process = Process.of(sleeper.pid)
        assert process.lives
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not process.lives


class TestTaking:
    def test_the_lock_file_names_the_holder(self, tmp_path: Path) -> None:
        lock = take(tmp_path / "lock", StopRequest())
        sign(lock, "mine", fleet_pid=os.getppid())
        assert read_holder(tmp_path / "lock") == LockHolder(
            "mine", socket.gethostname(), OWN, Process.of(os.getppid())
        )
        sign(lock, "mine")
        assert read_holder(tmp_path / "lock") == LockHolder("mine", socket.gethostname(), OWN, None)
        os.close(lock)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "a"}'])
    def test_a_lock_file_of_an_earlier_release_names_no_holder(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "lock").write_text(text)
        assert read_holder(tmp_path / "lock") is None
        os.close(take(tmp_path / "lock", StopRequest()))

    def test_a_living_command_is_named_without_waiting(self, tmp_path: Path) -> None:
        lock = take(tmp_path / "lock", StopRequest())
        sign(lock, "mine")
        with pytest.raises(ConfigurationError, match=f"in use by a living run, process {os.getpid()} on "):
            take(tmp_path / "lock", StopRequest())
        os.close(lock)

    def test_the_lock_waits_for_the_fleet_of_an_ended_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = take(tmp_path / "lock", StopRequest())
        monkeypatch.setattr(run_lock, "read_holder", lambda _: holder(GONE, fleet=OWN))
        timer = threading.Timer(0.5, os.close, [lock])
        timer.start()
        os.close(take(tmp_path / "lock", StopRequest()))
        timer.join()

    def test_a_fleet_that_does_not_end_is_refused_and_a_stop_ends_the_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = take(tmp_path / "lock", StopRequest())
        monkeypatch.setattr(run_lock, "_WAIT_S", 0.3)
        with pytest.raises(ConfigurationError, match="in use"):
            take(tmp_path / "lock", StopRequest())
        stop = StopRequest()
        stop.request()
        with pytest.raises(StoppedError):
            take(tmp_path / "lock", stop)
        os.close(lock)


class TestFileSystemsWithoutLocks:
    @pytest.fixture(autouse=True, params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
    def no_locks(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        def flock(_lock: int, _how: int) -> None:
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(fcntl, "flock", flock)

    def test_a_warning_appears_once_and_the_run_starts(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        os.close(take(tmp_path / "lock", StopRequest()))
        assert [record.getMessage().count("has no locks") for record in caplog.records] == [1]

    def test_a_living_command_is_refused_by_the_text_of_the_lock_file(self, tmp_path: Path) -> None:
        lock = take(tmp_path / "lock", StopRequest())
        sign(lock, "mine")
        with pytest.raises(ConfigurationError, match="in use by a living run"):
            take(tmp_path / "lock", StopRequest())
        os.close(lock)

    def test_the_lock_waits_for_an_ending_fleet(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
    ) -> None:
        fleet = Process.of(sleeper.pid)
        monkeypatch.setattr(run_lock, "read_holder", lambda _: holder(GONE, fleet))
        timer = threading.Timer(0.5, sleeper.kill)
        timer.start()
        os.close(take(tmp_path / "lock", StopRequest()))
        timer.join()
        assert not fleet.lives
