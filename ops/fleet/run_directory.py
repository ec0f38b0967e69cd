"""Names, checks, locks and prepares the directory of a run."""

import json
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from dppo_redis.artefacts.config_file import to_toml
from dppo_redis.artefacts.run_files import RunFiles, resumable_files
from dppo_redis.command_line.nearest import list_by_similarity
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.service.files import temporary_path, write_atomically
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.keys import check_run_name
from ops.fleet.run_lock import sign, take

RUNS = Path("runs")


@dataclass(frozen=True)
class RunDirectory:
    """A prepared directory and the name of the run in it."""

    run: str
    path: Path

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.path)


def default_run_name(config: RunConfig) -> str:
    """A unique name: environment, seed, time, and four random digits in case two runs start in one second."""
    return f"{stable_run_name(config)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def stable_run_name(config: RunConfig) -> str:
    """A name from environment and seed, which is the same at each start."""
    kept = (c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in config.env_id)
    env = "".join(kept).strip("-._") or "run"
    return f"{env[:60]}-s{config.seed}"


def run_in(directory: Path) -> str | None:
    """The name of the run in a directory; None without a run.

    Raises:
        ConfigurationError: the file with the run's name is unreadable.
    """
    file = RunFiles(directory).identity
    try:
        return check_run_name(json.loads(file.read_text(encoding="utf-8"))["run"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigurationError(f"{file} is unreadable: {error}") from error


def runs_here() -> list[str]:
    """Names of the directories in runs/ that hold a run, the newest first."""
    try:
        found = [path for path in RUNS.iterdir() if RunFiles(path).identity.is_file()]
        return [
            path.name for path in sorted(found, key=lambda path: -RunFiles(path).identity.stat().st_mtime)
        ]
    except OSError:
        return []


def sampling_in(directory: Path) -> str:
    """How the run was sampled, as passed to `prepare`; "" if an earlier release wrote the directory."""
    values = json.loads(RunFiles(directory).identity.read_text(encoding="utf-8"))
    return str(values.get("sampling", ""))


def choose(config: RunConfig, run: str | None, directory: Path | None, resume: bool) -> RunDirectory:
    """Choose the run's name and directory. Writes nothing.

    Raises:
        ConfigurationError: a bad name, or nothing to resume.
    """
    if resume:
        return _choose_to_resume(config, run, directory)
    name = check_run_name(run) if run else default_run_name(config)
    return RunDirectory(name, (directory or RUNS / name).absolute())


def _choose_to_resume(config: RunConfig, run: str | None, directory: Path | None) -> RunDirectory:
    if run is None and directory is None:
        here = runs_here()
        if config.env_id in here:
            raise ConfigurationError(f"--resume takes no name: write --resume --run {config.env_id}")
        listed = f"{RUNS}/ has: {', '.join(here[:8])} (newest first)" if here else _no_runs_here()
        raise ConfigurationError(f"--resume needs --run-dir DIR or --run NAME; {listed}")
    path = (directory or RUNS / check_run_name(run or "")).absolute()
    found = run_in(path)
    if found is None:
        raise nothing_to_resume(path)
    if run is not None and run != found:
        raise ConfigurationError(f"{path} holds run {found}, not {run}")
    if not resumable_files(RunFiles(path).checkpoints):
        raise ConfigurationError(
            f"{path} holds no checkpoint to resume from: --resume auto starts such a run from the beginning"
        )
    return RunDirectory(found, path)


def nothing_to_resume(path: Path) -> ConfigurationError:
    """The error for a directory that holds no run. Its message lists the runs in runs/, or the next step."""
    others = list_by_similarity(path.name, runs_here())
    return ConfigurationError(
        f"{path} holds no run to resume; {f'{RUNS}/ has: {others}' if others else _no_runs_here()}"
    )


def _no_runs_here() -> str:
    return f"there is no run in {RUNS}/ here: leave out --resume to start one, or change to another directory"


def check(directory: RunDirectory, *, resume: bool, overwrite: bool) -> None:
    """Refuse a directory that holds another run or foreign files. Writes nothing.

    Raises:
        ConfigurationError: the message names the remedy.
    """
    path = directory.path
    try:
        if resume or not path.exists() or _is_unused(directory.files):
            return
    except OSError as error:
        raise _unwritable(path, error) from error
    found = run_in(path)
    if found is None:
        raise ConfigurationError(f"{path} holds other files than those of a run: choose another --run-dir")
    if not overwrite:
        raise ConfigurationError(f"{path} holds run {found}: pass --resume, --overwrite or another --run-dir")


def _is_unused(files: RunFiles) -> bool:
    """Whether a directory is empty, or has only the first files of a command that was killed at its start."""
    children = set(files.path.iterdir())
    first_files = {
        files.lock,
        files.config,
        *(temporary_path(file) for file in (files.config, files.identity)),
    }
    return not children or (files.lock in children and children <= first_files)


def claim(directory: RunDirectory, stop: StopRequest | None = None, held: int | None = None) -> int:
    """Create and lock the directory. The caller keeps the returned file descriptor of the lock open.

    `held` is the lock's descriptor if `lock_existing` has locked the directory.

    Raises:
        ConfigurationError: a living run uses it, or it cannot be written.
        StoppedError: a stop was requested while the fleet of a killed command was ending.
    """
    lock = held
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        if lock is None:
            lock = take(directory.files.lock, stop or StopRequest())
    except OSError as error:
        raise _unwritable(directory.path, error) from error
    sign(lock, directory.run)
    return lock


def lock_existing(path: Path, stop: StopRequest) -> int | None:
    """Lock a directory that has a lock file, and return the descriptor; None without a lock file. Writes
    nothing.

    Raises:
        ConfigurationError, StoppedError: as `claim` does.
    """
    file = RunFiles(path).lock
    try:
        return take(file, stop) if file.exists() else None
    except OSError as error:
        raise _unwritable(path, error) from error


def prepare(directory: RunDirectory, config: RunConfig, *, resume: bool, sampling: str = "a fleet") -> None:
    """Write the configuration. Unless the run is resumed, first remove the files of an earlier run.

    `sampling` describes the command that samples and the age of its policies, which the configuration lacks.

    Raises:
        ConfigurationError: the directory cannot be written.
    """
    files = directory.files
    try:
        for file in () if resume else files.artefacts:  # the user's own files stay
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)
        write_atomically(files.config, tomli_w.dumps(to_toml(config)).encode())
        identity = {"run": directory.run, "sampling": sampling}
        write_atomically(files.identity, json.dumps(identity).encode())
    except OSError as error:
        raise _unwritable(directory.path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"cannot write the run directory {path}: {error.strerror}: choose another --run-dir"
    )


def write_summary(path: Path, summary: RunSummary) -> None:
    """Write the summary into the run directory `path`."""
    write_atomically(RunFiles(path).summary, json.dumps(to_json(summary), indent=2).encode())
