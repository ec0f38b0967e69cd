"""Checkpoints on disks that are full, and on file systems that cannot flush."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dppo_redis.errors import CheckpointError
from tests.unit.learner.test_checkpoint import make_checkpoints, make_snapshot, make_trainer, names

FULL_DISK = """
import resource, sys
from pathlib import Path
from dppo_redis.errors import CheckpointError
from tests.unit.learner.test_checkpoint import make_checkpoints, make_snapshot, make_trainer
checkpoints = make_checkpoints(Path(sys.argv[1]))
for limit in (0, 1000, 5000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        checkpoints.save(make_trainer(), make_snapshot(2))
    except CheckpointError as error:
        print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("saved later:", checkpoints.save(make_trainer(), make_snapshot(4)).name)
"""


class TestDisk:
    def test_a_full_disk_keeps_the_old_checkpoint_and_saving_works_again_later(self, tmp_path: Path) -> None:
        old = make_checkpoints(tmp_path).save(make_trainer(), make_snapshot(1))
        content = old.read_bytes()
        child = subprocess.run(
            [sys.executable, "-c", FULL_DISK, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        assert child.stdout.count("refused: cannot save") == 3
        assert "saved later: checkpoint-000000004.pt" in child.stdout
        assert old.read_bytes() == content
        assert names(tmp_path) == ["checkpoint-000000001.pt", "checkpoint-000000004.pt"]

    def test_a_directory_that_became_a_file_is_reported(self, tmp_path: Path) -> None:
        directory = tmp_path / "checkpoints"
        directory.write_text("a file")
        with pytest.raises(CheckpointError, match="cannot save"):
            make_checkpoints(directory).save(make_trainer(), make_snapshot())

    def test_a_directory_in_the_place_of_the_file_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoint-000000003.pt").mkdir()
        with pytest.raises(CheckpointError, match="cannot save"):
            make_checkpoints(tmp_path).save(make_trainer(), make_snapshot())
        assert names(tmp_path) == ["checkpoint-000000003.pt"]

    def test_a_milestone_that_cannot_be_kept_does_not_keep_old_checkpoints_on_a_full_disk(
        self, tmp_path: Path
    ) -> None:
        checkpoints, trainer = make_checkpoints(tmp_path, keep=1), make_trainer()
        (tmp_path / f"milestone-{make_snapshot(2).progress.trained_steps:012d}.pt").mkdir()
        checkpoints.save(trainer, make_snapshot(1))
        with pytest.raises(CheckpointError, match="milestone"):
            checkpoints.save(trainer, make_snapshot(2), milestone=True)
        assert [file.name for file in checkpoints.files()] == ["checkpoint-000000002.pt"]


def fsync_that_fails(monkeypatch: pytest.MonkeyPatch, number: int, *, directories_only: bool) -> None:
    """Makes fsync fail as on file systems that cannot flush."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if not directories_only or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


class TestFileSystemsThatCannotFlush:
    @pytest.mark.parametrize(
        ("number", "directories_only"),
        [
            (errno.EINVAL, True),
            (errno.EIO, True),
            (errno.EBADF, True),
            (errno.EINVAL, False),
            (errno.ENOSYS, False),
        ],
    )
    def test_it_is_said_once_and_no_more_checkpoints_are_kept_than_asked_for(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        number: int,
        directories_only: bool,
    ) -> None:
        fsync_that_fails(monkeypatch, number, directories_only=directories_only)
        checkpoints, trainer = make_checkpoints(tmp_path, keep=2), make_trainer()
        for update in range(1, 6):
            checkpoints.save(trainer, make_snapshot(update), milestone=update == 3)
        kept = ["checkpoint-000000005.pt", "checkpoint-000000004.pt"]
        assert [file.name for file in checkpoints.files()] == kept
        assert len([name for name in names(tmp_path) if name.startswith("milestone")]) == 1
        assert [record.getMessage().count("cannot flush") for record in caplog.records] == [1]

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
    def test_a_disk_that_refuses_is_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        fsync_that_fails(monkeypatch, number, directories_only=False)
        with pytest.raises(CheckpointError, match=os.strerror(number)):
            make_checkpoints(tmp_path).save(make_trainer(), make_snapshot(1))
        assert names(tmp_path) == []
