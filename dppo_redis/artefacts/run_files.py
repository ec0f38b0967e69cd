"""The names of all files of a run's directory. No other module spells these names."""

import re
from dataclasses import dataclass
from pathlib import Path

_NUMBERED = re.compile(r"(checkpoint|milestone)-(\d+)\.pt")


class _Named:
    """A property of RunFiles: the file or folder of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: "RunFiles", _: type["RunFiles"]) -> Path:
        return files.path / self._name


@dataclass(frozen=True)
class RunFiles:
    """The paths of the files and folders in one run's directory; they need not exist."""

    path: Path

    config = _Named("config.toml")  # as used
    identity = _Named("run.json")  # the run's name, and who sampled it; marks a directory as that of a run
    spaces = _Named("spaces.json")  # of the environment, as it was when the run was started
    lock = _Named("run.lock")  # held while the run lives
    checkpoints = _Named("checkpoints")
    used = _Named("used.json")  # epochs and versions that may have been published
    metrics = _Named("metrics.csv")
    tensorboard = _Named("tensorboard")
    curve = _Named("curve.png")
    summary = _Named("summary.json")
    best_policy = _Named("best_policy.msgpack")
    best_evaluation = _Named("best_evaluation.json")
    fleet = _Named("supervisord.conf")  # the services that supervisord runs
    logs = _Named("logs")
    fleet_errors = _Named("logs/supervisord.stderr")  # supervisord's errors before it has a log

    def log(self, service: str) -> Path:
        """The log of a service, for example `learner` or `actor_000`, or of `supervisord` itself."""
        return self.logs / f"{service}.log"

    @property
    def artefacts(self) -> tuple[Path, ...]:
        """All files of a run except its lock. The identity is last: it marks the directory as ours."""
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
            self.spaces,
            self.config,
            self.identity,
        )


def event_log_file(directory: Path, service: str) -> Path:
    """The file in `directory` in which a service records its events."""
    return directory / f"{service}.jsonl"


def checkpoint_name(update: int) -> str:
    """The file name of the checkpoint after `update`."""
    return f"checkpoint-{update:09d}.pt"


def milestone_name(trained_steps: int) -> str:
    """The file name of a milestone: a checkpoint that is kept for ever."""
    return f"milestone-{trained_steps:012d}.pt"


def number_of(file: Path) -> int:
    """The update in a checkpoint's name, the trained steps in a milestone's."""
    found = _NUMBERED.fullmatch(file.name)
    if found is None:
        raise ValueError(f"{file.name} is no checkpoint's name")
    return int(found[2])


def checkpoint_files(directory: Path, kind: str = "checkpoint") -> list[Path]:
    """The checkpoints or milestones in a directory, newest first; copies under other names are left out."""
    files = [file for file in directory.glob(f"{kind}-*.pt") if _NUMBERED.fullmatch(file.name)]
    return sorted(files, key=number_of, reverse=True)


def resumable_files(directory: Path) -> list[Path]:
    """The files from which a run can be resumed: its checkpoints, newest first, then its milestones."""
    return checkpoint_files(directory) + checkpoint_files(directory, "milestone")
