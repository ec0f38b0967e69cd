"""The options that `train` and `serial` share: the run's configuration, its name and its directory."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.service.arguments import parse_arguments, parse_known


@dataclass(frozen=True)
class TrainOptions:
    """Train ENV with a fleet: Redis, one learner, the actors and an evaluator, under supervisord."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: RunConfig())
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML file with any of the settings; the command line wins"""
    run: str | None = None
    """Name of the run; default: environment, seed and time"""
    run_dir: Path | None = None
    """Directory of the run; default: runs/NAME"""
    redis: str | None = None
    """Use the Redis at this URL instead of an embedded one; default: DPPO_REDIS_URL, where set"""
    resume: bool = False
    """Go on from the last checkpoint in the run's directory, with its configuration"""
    overwrite: bool = False
    """Remove what an earlier run left behind, under this name and in this directory"""
    json: bool = False
    """Print a JSON object as the last line of standard output"""
    history: Path | None = None
    """Directory to which each service appends what it did, for checking afterwards; default: none"""


@dataclass(frozen=True)
class SerialOptions:
    """Train ENV in one process, without Redis: the baseline that the fleet is compared with."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: RunConfig())
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML file with any of the settings; the command line wins"""
    run: str | None = None
    """Name of the run; default: environment, seed and time"""
    run_dir: Path | None = None
    """Directory of the run; default: runs/NAME"""
    age: Annotated[int, tyro.conf.arg(metavar="UPDATES")] = 0
    """Sample with the policy of this many updates ago: what old data does, exact and reproducible"""
    overwrite: bool = False
    """Remove what an earlier run left behind, under this name and in this directory"""
    json: bool = False
    """Print a JSON object as the last line of standard output"""


T = TypeVar("T", TrainOptions, SerialOptions)


@dataclass(frozen=True)
class _BaseOptions:
    """The options that say which file the others are read on top of."""

    config: Path | None = None
    run: str | None = None
    run_dir: Path | None = None
    resume: bool = False
    overwrite: bool = False


def read_options(kind: type[T], argv: Sequence[str] | None, prog: str) -> T:
    """Parse a command line on top of its TOML file: --config, or that of the run to resume.

    Raises:
        ConfigurationError: a bad option, file or value.
    """
    for word in sys.argv[1:] if argv is None else argv:  # tyro would take the value for the environment
        flag, equals, value = word.partition("=")
        if equals and flag in ("--resume", "--overwrite"):
            mistake = f"argument {flag}: ignored explicit argument {value!r}"
            raise ConfigurationError(f"{mistake} (see {prog} --help)")
    known = parse_known(_BaseOptions, argv, prog)
    file = known.config
    if known.resume and (known.overwrite or file is not None):
        other = "--overwrite" if known.overwrite else "--config"
        raise ConfigurationError(f"--resume goes on with the run's own configuration: leave out {other}")
    if known.resume and (known.run_dir or known.run):
        file = RunFiles(known.run_dir or Path("runs", known.run or "")).config
        if not file.exists():
            raise ConfigurationError(f"{file.parent} holds no run to resume")
    base = load_toml(file) if file is not None else RunConfig()
    # A dictionary with a default could only be changed, not added to, on the command line.
    bare = base.model_copy(update={"env_kwargs": {}})
    options = parse_arguments(kind, argv, prog, default=kind(config=bare))
    changes: dict[str, Any] = {"env_kwargs": {**base.env_kwargs, **options.config.env_kwargs}}
    if options.config.init_from is not None:  # the learner may run elsewhere
        changes["init_from"] = str(Path(options.config.init_from).absolute())
    return replace(options, config=options.config.model_copy(update=changes))
