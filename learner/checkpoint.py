"""Writes and reads checkpoints: each holds the whole state of a learner in one file.

A checkpoint is written under a temporary name, flushed, read back, then renamed. The last k are kept, and
milestones for ever.

The file holds only plain values and tensors, so `weights_only=True` loads it. `restore` refuses a file of
another run or spec, and a file that lacks a part; it skips damaged files with a warning. The checksums in
the file show damage. torch does not check them, so this module does.
"""

import contextlib
import logging
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dppo_redis.artefacts.run_files import (
    checkpoint_files,
    checkpoint_name,
    milestone_name,
    number_of,
    resumable_files,
)
from dppo_redis.errors import CheckpointError, ConfigurationError
from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.files import flush_directory, flush_file, write_atomically
from dppo_redis.service.plugins import one_line
from dppo_redis.spaces.normaliser import RunningMoments
from learner.ppo.update import PpoUpdate
from learner.progress import Progress

FORMAT = 1
_PARTS = frozenset(
    ("format", "run", "spec", "spec_values", "model", "optimizer", "observation_moments", "return_moments",
     "minibatch_rng", "torch_rng", "progress", "epoch", "version", "lineage", "marks", "ledger",
     "last_entries_added", "actor_boots")
)  # fmt: skip
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class LearnerSnapshot:
    """The part of a checkpoint besides network, optimiser and random states."""

    progress: Progress
    epoch: int
    version: int
    lineage: Lineage
    last_sequence_numbers: LastSequenceNumbers
    ledger_audit: LedgerAudit
    actor_boots: Mapping[str, int]


def read_values(file: Path) -> dict[str, Any]:
    """All parts of a checkpoint of any run.

    Raises:
        CheckpointError: it is damaged or incomplete.
    """
    try:
        _verify(file)
        values = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{file.name} is damaged ({type(error).__name__})") from error
    if not isinstance(values, dict) or set(values) != _PARTS or values["format"] != FORMAT:
        raise CheckpointError(f"{file.name} is not a complete checkpoint of format {FORMAT}")
    try:
        Progress.from_dict(values["progress"])
    except KeyError as error:
        raise CheckpointError(f"{file.name} is not complete: {error}") from error
    return values


def newest_readable(files: Iterable[Path]) -> tuple[Path, dict[str, Any]] | None:
    """The first readable one of `files`, and its parts. A warning names each unreadable one before it."""
    for file in files:
        try:
            return file, read_values(file)
        except CheckpointError as error:
            if file.exists():  # a living learner may have just removed it
                _log.warning("%s; trying the checkpoint before it", error)
    return None


def _verify(file: Path) -> None:
    """Compare every part of the archive with its checksum.

    Raises:
        zipfile.BadZipFile: a part differs, or it is no archive.
    """
    with zipfile.ZipFile(file) as archive:
        part = archive.testzip()
        if part is not None:
            raise zipfile.BadZipFile(part)


class Checkpoints:
    """The checkpoints of one run in its directory.

    In lock-step mode a run resumes from the start of a segment only, so the checkpoints at these updates are
    kept. The last checkpoint is kept beside them, at any update.
    """

    def __init__(self, directory: Path, run: str, spec: str, keep: int, segment_updates: int = 1) -> None:
        self.directory = directory
        self._run = run
        self._spec = spec
        self._keep = keep
        self._segment_updates = segment_updates
        self._has_warned = False  # whether the warning about flushing was logged

    def save(
        self,
        ppo: PpoUpdate,
        snapshot: LearnerSnapshot,
        confirm: Callable[[], None] = lambda: None,
        *,
        milestone: bool = False,
    ) -> Path:
        """Write a checkpoint, a copy as `milestone`; then delete all but the last `keep` checkpoints.

        `confirm` is called before the file gets its name. It raises if this process may no longer save: the
        process may have been frozen for minutes, and another learner may have saved since.

        Raises:
            CheckpointError: the disk refuses; the older files are unchanged.
        """
        file = self.directory / checkpoint_name(snapshot.progress.update)
        temporary = file.with_suffix(".writing")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                torch.save(self._values(ppo, snapshot), stream)
                unable = flush_file(stream)
            read_values(temporary)
            confirm()
            temporary.replace(file)
            self._warn_once(unable or flush_directory(self.directory))
        except (OSError, RuntimeError, CheckpointError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise CheckpointError(f"cannot save {file}: {error}") from error
        self._remove_old(file)
        if milestone:
            self._keep_for_ever(file, milestone_name(snapshot.progress.trained_steps))
        return file

    def _keep_for_ever(self, file: Path, name: str) -> None:
        try:
            write_atomically(self.directory / name, file.read_bytes())
        except OSError as error:
            raise CheckpointError(f"cannot save {self.directory / name}: {error}") from error

    def _warn_once(self, unable: OSError | None) -> None:
        """Warn once that the file system cannot flush, so that a power failure may lose the file."""
        if unable is not None and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: this file system cannot flush (%s): a power loss may take the last checkpoint",
                self.directory,
                unable.strerror,
            )

    def _remove_old(self, file: Path) -> None:
        """Remove checkpoints but `file` and the last `keep`, and unfinished files of killed processes."""
        kept = {file, *self._resumable()[: self._keep]}
        half_written = self.directory.glob("*.writing")  # by killed processes
        for old in (*(set(self.files()) - kept), *half_written):
            with contextlib.suppress(OSError):  # a file that stays costs disk space only
                old.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """All checkpoints, newest first."""
        return checkpoint_files(self.directory)

    def _resumable(self) -> list[Path]:
        """The checkpoints at the start of a segment, newest first."""
        return [file for file in self.files() if number_of(file) % self._segment_updates == 0]

    def restore(self, ppo: PpoUpdate) -> LearnerSnapshot | None:
        """Load the newest usable checkpoint, else milestone, into `ppo`; returns None if there is no file.

        In lock-step mode this is the newest one at the start of a segment: the later updates are trained
        again, with the same result.

        Raises:
            ConfigurationError: the files are of another run or spec.
            CheckpointError: there are files, but none can be read.
        """
        resumable = self._resumable()
        files = resumable + [file for file in resumable_files(self.directory) if file not in resumable]
        found = newest_readable(files)
        if found is None:
            self._refuse_unreadable(files)
            return None
        file, values = found
        self._refuse_foreign(file, values, ppo.spec)
        for damaged in files[: files.index(file)]:  # else they would count as the newest
            with contextlib.suppress(FileNotFoundError):  # a living learner may have removed it
                damaged.rename(damaged.with_suffix(".damaged"))
        snapshot = self._load(values, ppo)
        if snapshot.progress.update % self._segment_updates:
            _log.warning(
                "%s is not the start of a segment: the rest of the run is not exactly reproducible", file.name
            )
        elif file in resumable and file != self.files()[0]:
            _log.info("training again from the start of the segment, update %d", number_of(file))
        return snapshot

    def peek(self, ppo: PpoUpdate, file: Path | None) -> LearnerSnapshot | None:
        """Load `file`, or the newest readable checkpoint, into `ppo`; writes nothing to the disk.

        Raises:
            ConfigurationError: it is of another run or spec.
            CheckpointError: it is damaged or incomplete.
        """
        files = resumable_files(self.directory)
        found = newest_readable(files) if file is None else (file, read_values(file))
        if found is None:
            self._refuse_unreadable(files)
            return None
        self._refuse_foreign(*found, ppo.spec)
        return self._load(found[1], ppo)

    def _refuse_unreadable(self, files: list[Path]) -> None:
        if files:
            raise CheckpointError(f"none of the {len(files)} checkpoints in {self.directory} can be read")

    def _refuse_foreign(self, file: Path, values: dict[str, Any], spec: Spec) -> None:
        if values["run"] != self._run:
            raise ConfigurationError(f"{file} belongs to run {values['run']}, this is run {self._run}")
        if values["spec"] != self._spec:
            differences = spec.differences(Spec.from_json(values["spec_values"]))
            raise ConfigurationError(
                f"{file} belongs to run {values['run']}, but with another spec: {'; '.join(differences)}"
            )

    def _values(self, ppo: PpoUpdate, snapshot: LearnerSnapshot) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "run": self._run,
            "spec": self._spec,
            "spec_values": ppo.spec.to_json(),  # for a warm start elsewhere
            "model": ppo.model.state_dict(),
            "optimizer": ppo.optimizer.state_dict(),
            "observation_moments": ppo.observation_moments.to_dict(),
            "return_moments": ppo.return_moments.to_dict(),
            "minibatch_rng": ppo.generator.get_state(),
            "torch_rng": torch.get_rng_state(),
            "progress": snapshot.progress.to_dict(),
            "epoch": snapshot.epoch,
            "version": snapshot.version,
            "lineage": [list(start) for start in snapshot.lineage.starts],
            "marks": snapshot.last_sequence_numbers.to_dict(),
            "ledger": dict(snapshot.ledger_audit.ledger.counts),
            "last_entries_added": snapshot.ledger_audit.last_entries_added,
            "actor_boots": dict(snapshot.actor_boots),
        }

    @staticmethod
    def _load(values: dict[str, Any], ppo: PpoUpdate) -> LearnerSnapshot:
        try:
            ppo.model.load_state_dict(values["model"])
            ppo.optimizer.load_state_dict(values["optimizer"])
        except (RuntimeError, ValueError) as error:  # only a custom network can change within a spec
            raise ConfigurationError(
                f"the checkpoint does not fit the network: {one_line(error)} was its class changed?"
            ) from error
        ppo.observation_moments = RunningMoments.from_dict(values["observation_moments"])
        ppo.return_moments = RunningMoments.from_dict(values["return_moments"])
        ppo.generator.set_state(values["minibatch_rng"])
        torch.set_rng_state(values["torch_rng"])
        return LearnerSnapshot(
            progress=Progress.from_dict(values["progress"]),
            epoch=values["epoch"],
            version=values["version"],
            lineage=Lineage(tuple((epoch, update) for epoch, update in values["lineage"])),
            last_sequence_numbers=LastSequenceNumbers(values["marks"]),
            ledger_audit=LedgerAudit(Ledger(values["ledger"]), values["last_entries_added"]),
            actor_boots=values["actor_boots"],
        )


def is_milestone(steps_before: int, steps: int, milestone_steps: int | None) -> bool:
    """Whether an update from `steps_before` to `steps` trained steps has passed a milestone."""
    return milestone_steps is not None and steps // milestone_steps > steps_before // milestone_steps
