"""Decides how a training command starts: with a new run, a resumed run, or a finished run.

`--resume` requires a run that can be resumed. `--resume auto` resumes a run if the directory holds one and
starts a new run otherwise, so the same command line serves the first start and each restart after a
preemption. This module writes no files.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dppo_redis.artefacts.run_files import RunFiles, resumable_files
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.report_fields import from_json
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.keys import check_run_name
from ops.fleet.run_directory import RUNS, RunDirectory, choose, lock_existing, run_in, stable_run_name
from ops.fleet.run_lock import read_holder
from ops.options import SerialOptions, TrainOptions, read_options, read_options_of_run

T = TypeVar("T", TrainOptions, SerialOptions)
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class StartDecision(Generic[T]):
    """The options, directory and lock with which a command starts."""

    options: T  # `resume` and `overwrite` hold the decision
    directory: RunDirectory
    lock: int | None  # file descriptor of the directory's lock; None if there was no lock file
    summary: RunSummary | None = None  # of a finished run, which needs no more training


def decide_start(kind: type[T], argv: Sequence[str] | None, prog: str, stop: StopRequest) -> StartDecision[T]:
    """Read the command line, wait until its directory is free, and decide by the directory's files.

    Raises:
        ConfigurationError: a bad option, nothing to resume, or a directory that is in use.
        StoppedError: a stop was requested meanwhile.
    """
    options = read_options(kind, argv, prog)
    name = options.run
    if options.resume == "auto" and name is None:
        name = stable_run_name(options.config) + ("-serial" if isinstance(options, SerialOptions) else "")
    lock = None
    if options.resume and (options.run_dir or name):
        lock = lock_existing((options.run_dir or RUNS / check_run_name(name or "")).absolute(), stop)
    try:
        if options.resume == "auto":
            return _decide_automatically(options, argv, prog, str(name), lock)
        directory = choose(options.config, options.run, options.run_dir, bool(options.resume))
    except ConfigurationError:
        if lock is not None:
            os.close(lock)
        raise
    return StartDecision(options, directory, lock)


def _decide_automatically(
    options: T, argv: Sequence[str] | None, prog: str, name: str, lock: int | None
) -> StartDecision[T]:
    path = (options.run_dir or RUNS / name).absolute()
    files = RunFiles(path)
    found = run_in(path)
    if found is not None and options.run not in (None, found):
        raise ConfigurationError(f"{path} holds run {found}, not {options.run}")
    if found is not None and resumable_files(files.checkpoints):
        resumed = read_options_of_run(type(options), argv, prog, files.config)
        directory = RunDirectory(found, path)
        summary = _summary_if_finished(files, resumed.config)
        if summary is None:
            _log.info("run %s in %s continues", found, path)
        return StartDecision(replace(resumed, resume="last"), directory, lock, summary)
    holder = read_holder(files.lock)
    earlier = found or (
        None if holder is None else holder.run
    )  # of a command that was killed before its first checkpoint
    directory = RunDirectory(check_run_name(options.run or earlier or name), path)
    if earlier is not None:
        _log.info(
            "run %s in %s has no checkpoint: it starts again from the beginning",
            earlier,
            path,
        )
    is_same_run = earlier == directory.run
    return StartDecision(replace(options, resume="", overwrite=is_same_run), directory, lock)


def _summary_if_finished(files: RunFiles, config: RunConfig) -> RunSummary | None:
    """The summary of a run that is finished and has reached the goal of `config`; else None."""
    try:
        summary = from_json(RunSummary, files.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if summary.reason in ("total_steps", "env_steps"):  # the previous release's name
        return summary if summary.trained_steps >= config.total_steps else None
    if summary.reason == "target" and config.target_return is not None:
        reached = summary.return_mean if config.target_on == "eval" else summary.train_return_mean
        return summary if reached is not None and reached >= config.target_return else None
    return None
