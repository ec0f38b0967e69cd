"""Turns the keyword arguments of `dppo_redis.train` into a configuration, its file and a command line.

The configuration is the command's own `RunConfig`, so both refuse the same mistakes.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dppo_redis.artefacts.config_file import load_with_notes
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.settings import with_our_names
from dppo_redis.store.address import read_address
from dppo_redis.store.keys import check_run_name
from ops.fleet.run_directory import RUNS, RunDirectory, choose, stable_run_name
from ops.library.keyword_messages import with_keywords
from ops.library.refusals import check_environment, check_names
from ops.options import merged

Resume = bool | Literal["auto"]


@dataclass(frozen=True)
class Request:
    """A checked request for a run, before anything has started."""

    config: RunConfig  # the caller's settings; a resumed run has its other settings in its directory
    settings: Mapping[str, Any]  # the caller's settings as TOML values, without defaults
    directory: RunDirectory
    redis: str | None
    resume: Resume
    overwrite: bool
    event_log: Path | None

    def command(self, config_file: Path) -> list[str]:
        """The words of the command line after `dppo-redis`."""
        words = ["train", "--json", "--config", str(config_file), "--run-dir", str(self.directory.path)]
        if self.resume:
            words += ["--resume", "auto"]  # `make_request` has checked that there is a run to resume
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

    Names of other libraries with the same meaning become ours, with a warning that says so.

    Raises:
        ConfigurationError: an unknown setting, a value out of range, an environment that only this process
            can import, or nothing to resume.
    """
    try:
        return _make_request(
            env,
            settings,
            config=config,
            run=run,
            path=None if run_dir is None else Path(run_dir),
            redis=redis,
            resume=resume,
            overwrite=overwrite,
            event_log=None if event_log is None else Path(event_log).absolute(),
        )
    except ConfigurationError as error:
        error.args = (with_keywords(str(error)),)
        raise


def _make_request(
    env: object,
    settings: Mapping[str, Any],
    *,
    config: RunConfig | Path | str | None,
    run: str | None,
    path: Path | None,
    redis: str | None,
    resume: Resume,
    overwrite: bool,
    event_log: Path | None,
) -> Request:
    check_environment(env)
    if resume not in (True, False, "auto"):
        raise ConfigurationError(f'resume: pass True, False or "auto" (got {resume!r})')
    if resume is True and (overwrite or config is not None):
        other = "overwrite" if overwrite else "config"
        raise ConfigurationError(f"resume continues with the run's own configuration: leave out {other}")
    changes, notes = with_our_names(RunConfig, {name: _plain(value) for name, value in settings.items()})
    if env is not None:
        if "env_id" in changes:
            raise ConfigurationError("env_id: env already names the environment: leave one of them out")
        changes["env_id"] = env
    if isinstance(config, Path | str):
        config, notes_on_file = load_with_notes(Path(config))
        notes += notes_on_file
    check_names(changes)
    for note in notes:
        warnings.warn(note, stacklevel=4)  # at the caller of `dppo_redis.train`
    known = {} if config is None else config.model_dump(exclude_unset=True)
    whole = RunConfig.model_validate(merged(known, changes))
    if redis is not None:
        read_address(redis)
    return Request(
        whole,
        _to_toml(whole.model_dump(exclude_unset=True, exclude_none=True)),
        _choose(whole, run, path, resume),
        redis,
        resume,
        overwrite,
        event_log,
    )


def _choose(config: RunConfig, run: str | None, path: Path | None, resume: Resume) -> RunDirectory:
    if resume != "auto":
        return choose(config, run, path, bool(resume))
    name = check_run_name(run) if run else stable_run_name(config)
    return RunDirectory(name, (path or RUNS / name).absolute())


def _plain(value: Any) -> Any:
    """The value with Python's numbers instead of numpy's and texts instead of paths, also inside sections."""
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
