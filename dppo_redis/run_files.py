"""The names of all files of a run's directory. No other file spells one."""

import re
from dataclasses import dataclass
from pathlib import Path

_NUMBERED = re.compile(r"(checkpoint|milestone)-(\d+)\.pt")


@dataclass(frozen=True)
class RunFiles:
    """The files and folders of one run's directory; whether they are there is another question."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration as used."""
        return self.path / "config.toml"

    @property
    def identity(self) -> Path:
        """The run's name, and who sampled it: what marks a directory as a run's."""
        return self.path / "run.json"

    @property
    def lock(self) -> Path:
        return self.path / "run.lock"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def used(self) -> Path:
        """Epochs and versions that may have been published."""
        return self.path / "used.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def curve(self) -> Path:
        return self.path / "curve.png"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def best_policy(self) -> Path:
        return self.path / "best_policy.msgpack"

    @property
    def best_evaluation(self) -> Path:
        return self.path / "best_evaluation.json"

    @property
    def fleet(self) -> Path:
        """What supervisord runs."""
        return self.path / "supervisord.conf"

    @property
    def fleet_errors(self) -> Path:
        """What supervisord says before it has a log."""
        return self.logs / "supervisord.stderr"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, service: str) -> Path:
        """Of `learner`, `actor_000`, ... and of supervisord itself."""
        return self.logs / f"{service}.log"

    @property
    def artefacts(self) -> tuple[Path, ...]:
        """All that a run leaves but its lock. The identity is last: until then the directory is ours."""
        return (
            self.checkpoints,
            self.tensorboard,
            self.logs,
            self.metrics,
            self.curve,
            self.best_policy,
            self.best_evaluation,
            self.fleet,
            self.used,
            self.summary,
            self.config,
            self.identity,
        )


def event_log(directory: Path, service: str) -> Path:
    """Where a service writes down what it did, in the directory that was asked for."""
    return directory / f"{service}.jsonl"


def checkpoint_name(update: int) -> str:
    """Of the checkpoint after `update`."""
    return f"checkpoint-{update:09d}.pt"


def milestone_name(trained_steps: int) -> str:
    """Of the checkpoint that is kept for ever."""
    return f"milestone-{trained_steps:012d}.pt"


def number_of(file: Path) -> int:
    """The update in a checkpoint's name, the trained steps in a milestone's."""
    found = _NUMBERED.fullmatch(file.name)
    if found is None:
        raise ValueError(f"{file.name} is no checkpoint's name")
    return int(found[2])


def checkpoint_files(directory: Path, kind: str = "checkpoint") -> list[Path]:
    """The checkpoints, or milestones, in a directory, newest first; copies under other names are neither."""
    files = [file for file in directory.glob(f"{kind}-*.pt") if _NUMBERED.fullmatch(file.name)]
    return sorted(files, key=number_of, reverse=True)


def resumable_files(directory: Path) -> list[Path]:
    """All that a run may go on from: its checkpoints, newest first, then its milestones."""
    return checkpoint_files(directory) + checkpoint_files(directory, "milestone")
