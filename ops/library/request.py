"""Turns the keyword arguments of `dppo_redis.train` into a configuration, its file and a command line.

The configuration is the command's own `RunConfig`, so a mistake gets the same error message.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.store.address import read_address
from dppo_redis.store.keys import check_run_name
from ops.fleet.run_directory import RUNS, RunDirectory, choose, stable_run_name
from ops.library.refusals import check_environment, check_names
from ops.options import merged

Resume = bool | Literal["auto"]


@dataclass(frozen=True)
class Request:
    """A checked request for a run, before anything has started."""

    config: RunConfig  # the caller's settings; the other settings of a resumed run lie in its directory
    settings: Mapping[str, Any]  # the caller's settings as TOML values, without defaults
    directory: RunDirectory
    redis: str | None
    resume: Resume
    overwrite: bool
    event_log: Path | None

    def command(self, config_file: Path) -> list[str]:
        """The words of the command, behind `dppo-redis`."""
        words = ["train", "--json", "--config", str(config_file), "--run-dir", str(self.directory.path)]
        if self.resume:
            words += ["--resume", "auto"]  # that there is something to resume was seen before
        else:
            words += ["--run", self.directory.run]
        if self.overwrite:
            words.append("--overwrite")
        return words if self.event_log is None else [*words, "--event-log", str(self.event_log)]


def make_request(
    env: object,
    settings: Mapping[str, Any],
    *,
    config: RunConfig | Path | str | None,
    run: str | None,
    run_dir: Path | str | None,
    redis: str | None,
    resume: Resume,
    overwrite: bool,
    event_log: Path | str | None,
) -> Request:
    """Check the caller's arguments without making the environment.

    Raises:
        ConfigurationError: an unknown setting, a value out of range, an environment that only this process
            knows, or nothing to resume.
    """
    check_environment(env)
    if resume not in (True, False, "auto"):
        raise ConfigurationError(f'resume: True, False or "auto" (got {resume!r})')
    if resume is True and (overwrite or config is not None):
        other = "overwrite" if overwrite else "config"
        raise ConfigurationError(f"resume goes on with the run's own configuration: leave out {other}")
    changes = {name: _plain(value) for name, value in settings.items()}
    if env is not None:
        if "env_id" in changes:
            raise ConfigurationError("env_id: the environment is named twice, leave one out")
        changes["env_id"] = env
    if isinstance(config, Path | str):
        config = load_toml(Path(config))
    check_names(changes)
    known = {} if config is None else config.model_dump(exclude_unset=True)
    whole = RunConfig.model_validate(merged(known, changes))
    if redis is not None:
        read_address(redis)
    path = None if run_dir is None else Path(run_dir)
    return Request(
        whole,
        _to_toml(whole.model_dump(exclude_unset=True, exclude_none=True)),
        _choose(whole, run, path, resume),
        redis,
        resume,
        overwrite,
        None if event_log is None else Path(event_log).absolute(),
    )


def _choose(config: RunConfig, run: str | None, path: Path | None, resume: Resume) -> RunDirectory:
    if resume != "auto":
        return choose(config, run, path, bool(resume))
    name = check_run_name(run) if run else stable_run_name(config)
    return RunDirectory(name, (path or RUNS / name).absolute())


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, paths as texts, in sections, too."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _to_toml(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_toml(part) for name, part in value.items()}
    return [_to_toml(part) for part in value] if isinstance(value, list | tuple) else value
