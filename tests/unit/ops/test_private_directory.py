"""Where the sockets of a fleet are, and that they are kept fresh and put back."""

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
    """A place with a short path."""
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
    def test_one_that_is_not_ours_alone_is_not_used(
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

    def test_what_tmpdir_names_is_used(self, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = short / "tmp"
        chosen.mkdir()
        monkeypatch.setenv("TMPDIR", str(chosen))
        assert place_of(short) == chosen

    @pytest.mark.parametrize("tmpdir", ["/tmp", "/var/tmp", ""])
    def test_a_place_that_cleaners_visit_is_the_last_resort(
        self, short: Path, monkeypatch: pytest.MonkeyPatch, tmpdir: str
    ) -> None:
        monkeypatch.setenv("TMPDIR", tmpdir)
        assert place_of(short) == short

    def test_a_run_directory_whose_path_is_too_long_for_sockets_is_left_alone(self, tmp_path: Path) -> None:
        deep = tmp_path / ("x" * 60)
        deep.mkdir()
        assert place_of(deep) == Path("/tmp")

    def test_a_file_system_that_takes_no_sockets_is_left_alone(
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
    asked: list[str] = field(default_factory=list)

    def restart(self, name: str) -> None:
        self.asked.append(name)

    def restart_all(self) -> None:
        self.asked.append("all")


class TestUpkeep:
    @pytest.fixture
    def fleet(self, short: Path) -> _Fleet:
        for name in ("supervisor.sock", "redis.sock"):
            (short / name).touch()
        return _Fleet(_Plan(short))

    @pytest.fixture
    def upkeep(self, fleet: _Fleet) -> SocketUpkeep:
        return SocketUpkeep(cast(Fleet, cast(Any, fleet)), fleet.plan.private_dir / "redis.sock")

    def test_while_everything_is_there_nothing_is_done(self, fleet: _Fleet, upkeep: SocketUpkeep) -> None:
        upkeep()
        assert fleet.asked == []

    @pytest.mark.parametrize(("gone", "asked"), [("redis.sock", "broker"), ("supervisor.sock", "all")])
    def test_what_was_swept_away_is_put_back_once(
        self, fleet: _Fleet, upkeep: SocketUpkeep, gone: str, asked: str
    ) -> None:
        (fleet.plan.private_dir / gone).unlink()
        upkeep()
        upkeep()
        assert fleet.asked == [asked]

    def test_the_directory_itself_may_be_gone(self, fleet: _Fleet, upkeep: SocketUpkeep) -> None:
        shutil.rmtree(fleet.plan.private_dir)
        upkeep()
        assert fleet.asked == ["all"]
        assert fleet.plan.private_dir.stat().st_mode & 0o777 == 0o700

    def test_files_are_touched_each_hour_because_cleaners_judge_by_age(
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
