"""The directory of a fleet's sockets, and the restoring of removed sockets."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from ops.fleet.private_directory import SocketUpkeep, make_private_directory
from ops.fleet.supervisor import Fleet


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path."""
    made = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)


def place_of(run_dir: Path) -> Path:
    made = make_private_directory(run_dir)
    try:
        assert made.stat().st_mode & 0o777 == 0o700
        assert len(str(made / "supervisor.sock.1234567")) < 100
        return made.parent
    finally:
        made.rmdir()


class TestPlace:
    def test_the_users_runtime_directory_comes_first(
        self, short: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runtime = short / "runtime"
        runtime.mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert place_of(short) == runtime

    @pytest.mark.parametrize("flaw", ["open to others", "missing", "a file", "relative"])
    def test_a_runtime_directory_that_others_can_read_is_not_used(
        self, short: Path, monkeypatch: pytest.MonkeyPatch, flaw: str
    ) -> None:
        runtime = short / "runtime"
        if flaw == "a file":
            runtime.touch(mode=0o600)
        elif flaw != "missing":
            runtime.mkdir()
            runtime.chmod(0o777 if flaw == "open to others" else 0o700)
        monkeypatch.chdir(short)
        monkeypatch.setenv("XDG_RUNTIME_DIR", "runtime" if flaw == "relative" else str(runtime))
        assert place_of(short) == short

    def test_the_directory_in_tmpdir_is_used(self, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = short / "tmp"
        chosen.mkdir()
        monkeypatch.setenv("TMPDIR", str(chosen))
        assert place_of(short) == chosen

    @pytest.mark.parametrize("tmpdir", ["/tmp", "/var/tmp", ""])
    def test_a_directory_that_systems_clean_is_the_last_choice(
        self, short: Path, monkeypatch: pytest.MonkeyPatch, tmpdir: str
    ) -> None:
        monkeypatch.setenv("TMPDIR", tmpdir)
        assert place_of(short) == short

    def test_a_run_directory_whose_path_is_too_long_for_sockets_is_not_used(self, tmp_path: Path) -> None:
        deep = tmp_path / ("x" * 60)
        deep.mkdir()
        assert place_of(deep) == Path("/tmp")

    def test_a_file_system_without_sockets_is_not_used(
        self, short: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ops.fleet.private_directory._can_hold_sockets", lambda _directory: False)
        assert place_of(short) == Path("/tmp")
        assert list(short.iterdir()) == []


@dataclass
class _Plan:
    private_dir: Path

    @property
    def control_socket(self) -> Path:
        return self.private_dir / "supervisor.sock"


@dataclass
class _Fleet:
    plan: _Plan
    restarted: list[str] = field(default_factory=list)

    def restart(self, name: str) -> None:
        self.restarted.append(name)

    def restart_all(self) -> None:
        self.restarted.append("all")


class TestUpkeep:
    @pytest.fixture
    def fleet(self, short: Path) -> _Fleet:
        for name in ("supervisor.sock", "redis.sock"):
            (short / name).touch()
        return _Fleet(_Plan(short))

    @pytest.fixture
    def upkeep(self, fleet: _Fleet) -> SocketUpkeep:
        return SocketUpkeep(cast(Fleet, cast(Any, fleet)), fleet.plan.private_dir / "redis.sock")

    def test_nothing_is_restarted_while_all_sockets_exist(self, fleet: _Fleet, upkeep: SocketUpkeep) -> None:
        upkeep()
        assert fleet.restarted == []

    @pytest.mark.parametrize(("removed", "restarted"), [("redis.sock", "broker"), ("supervisor.sock", "all")])
    def test_a_removed_socket_is_restored_once(
        self, fleet: _Fleet, upkeep: SocketUpkeep, removed: str, restarted: str
    ) -> None:
        (fleet.plan.private_dir / removed).unlink()
        upkeep()
        upkeep()
        assert fleet.restarted == [restarted]

    def test_a_removed_directory_is_restored(self, fleet: _Fleet, upkeep: SocketUpkeep) -> None:
        shutil.rmtree(fleet.plan.private_dir)
        upkeep()
        assert fleet.restarted == ["all"]
        assert fleet.plan.private_dir.stat().st_mode & 0o777 == 0o700

    def test_files_are_touched_each_hour(
        self, fleet: _Fleet, upkeep: SocketUpkeep, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = fleet.plan.private_dir
        for path in (place, *place.iterdir()):
            os.utime(path, (1.0, 1.0))
        upkeep()
        assert place.stat().st_mtime == 1.0
        now = time.monotonic()
        monkeypatch.setattr("ops.fleet.private_directory.time.monotonic", lambda: now + 3601)
        upkeep()
        assert all(time.time() - path.stat().st_atime < 60 for path in (place, *place.iterdir()))
