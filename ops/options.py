"""The options that `train` and `serial` share: the run's configuration, its name and its directory."""

import itertools
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from dppo_redis.artefacts.config_file import load_toml, load_with_notes
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.command_line.declared import Option, options_of
from dppo_redis.command_line.foreign_names import as_flag
from dppo_redis.command_line.our_flags import values_by_option, with_our_flags
from dppo_redis.command_line.values import read_whole_number
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.service.arguments import asks_for_help, parse_arguments, parse_known, read_flags
from ops.help_layout import SERIAL_LAYOUT, TRAIN_LAYOUT

Resume = Annotated[Literal["", "last", "auto"], tyro.conf.arg(metavar="[auto]")]  # "last": --resume alone
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class TrainOptions:
    """Train ENV with a fleet: Redis, one learner, the actors and an evaluator, under supervisord."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: RunConfig())
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML file with settings; flags on the command line override it"""
    run: str | None = None
    """Name of the run; default: environment, seed and time; with --resume auto: environment and seed"""
    run_dir: Path | None = None
    """Directory of the run; default: runs/NAME"""
    redis: str | None = None
    """Use the Redis at this URL instead of an embedded one; default: DPPO_REDIS_URL, if set"""
    resume: Resume = ""
    """Continue from the last checkpoint in the run's directory; auto: start, continue, or show the result"""
    overwrite: bool = False
    """Remove an earlier run of this name, and an earlier run's files from this directory"""
    json: bool = False
    """Print a JSON object as the last line of standard output"""
    event_log: Path | None = None
    """Directory in which each service writes a log of its events, for later checks; default: none"""


@dataclass(frozen=True)
class SerialOptions:
    """Train ENV in one process, without Redis: the baseline for comparison with a fleet."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: RunConfig())
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML file with settings; flags on the command line override it"""
    run: str | None = None
    """Name of the run; default: environment, seed and time; with --resume auto: environment and seed"""
    run_dir: Path | None = None
    """Directory of the run; default: runs/NAME"""
    age: Annotated[int, tyro.conf.arg(metavar="UPDATES")] = 0
    """Sample with the policy of this many updates ago, to measure the effect of old data reproducibly"""
    resume: Resume = ""
    """Continue from the last checkpoint in the run's directory; auto: start, continue, or show the result"""
    overwrite: bool = False
    """Remove an earlier run of this name, and an earlier run's files from this directory"""
    json: bool = False
    """Print a JSON object as the last line of standard output"""


T = TypeVar("T", TrainOptions, SerialOptions)


@dataclass(frozen=True)
class _BaseOptions:
    """The options that choose the configuration file, which the other options override."""

    config: Path | None = None
    run: str | None = None
    run_dir: Path | None = None
    resume: Resume = ""
    overwrite: bool = False


def read_options(kind: type[T], argv: Sequence[str] | None, prog: str) -> T:
    """Parse a command line and its configuration file: --config, or the file of the run to resume.

    Raises:
        ConfigurationError: a bad option, file or value.
    """
    if kind is SerialOptions:
        _refuse_redis(sys.argv[1:] if argv is None else argv, prog)
    words = _with_resume_values(read_flags(kind, argv, prog), prog)
    known = parse_known(_BaseOptions, words, prog)
    file = known.config
    if known.resume == "auto" and known.overwrite:
        raise ConfigurationError(
            "--resume auto itself decides which files it may remove: leave out --overwrite"
        )
    if known.resume == "last" and (known.overwrite or file is not None):
        other = "--overwrite" if known.overwrite else "--config"
        raise ConfigurationError(f"--resume continues with the run's own configuration: leave out {other}")
    if known.resume == "last" and (known.run_dir or known.run):
        files = RunFiles(known.run_dir or Path("runs", known.run or ""))
        if files.identity.exists() and not files.config.exists():
            raise ConfigurationError(f"{files.path} holds no {files.config.name}: its run cannot be resumed")
        file = files.config if files.config.exists() else None  # without the file there is nothing to resume
        return _parse(kind, words, prog, load_toml(file) if file is not None else RunConfig())
    return _parse(kind, words, prog, _load_given(file) if file is not None else RunConfig())


def read_options_of_run(kind: type[T], argv: Sequence[str] | None, prog: str, file: Path) -> T:
    """Parse a command line. It overrides its --config file, which overrides the run's own configuration.

    Raises:
        ConfigurationError: as `read_options` does.
    """
    words = _with_resume_values(
        with_our_flags(sys.argv[1:] if argv is None else argv, options_of(kind)).words, prog
    )
    base, given = load_toml(file), parse_known(_BaseOptions, words, prog).config
    if given is not None:
        changes = load_toml(given).model_dump(exclude_unset=True)
        base = RunConfig.model_validate(merged(base.model_dump(), changes))
    return _parse(kind, words, prog, base)


def _load_given(file: Path) -> RunConfig:
    """Read the user's configuration file, and log the names of other libraries in it."""
    config, notes = load_with_notes(file)
    if notes:
        _log.info("%s", "; ".join(notes))
    return config


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`, section by section."""
    sections = {
        name: merged(before, change)
        for name, change in changes.items()
        if isinstance(change, dict) and isinstance(before := values.get(name), dict)
    }
    return {**values, **changes, **sections}


def _with_resume_values(given: Sequence[str], prog: str) -> list[str]:
    """The words, with `last` after each --resume alone: the user may write `--resume` or `--resume auto`."""
    words: list[str] = []
    for word, following in itertools.zip_longest(given, given[1:]):
        flag, equals, value = word.partition("=")
        if equals and flag == "--resume" and value != "auto":
            raise ConfigurationError(f"{flag} takes no value but auto (got {value!r}) (see {prog} --help)")
        words += [flag, value] if equals and flag == "--resume" else [word]
        if word == "--resume" and following != "auto":
            words.append("last")
    return words


def _refuse_redis(words: Sequence[str], prog: str) -> None:
    """Refuse --redis for `serial`.

    Raises:
        ConfigurationError: names the command that takes it.
    """
    flag = as_flag("redis")
    if any(word.partition("=")[0] == flag for word in words):
        raise ConfigurationError(
            f"{flag}: {prog} trains without Redis: leave it out, or use dppo-redis train"
        )


def _refuse_swallowed(words: Sequence[str], options: Sequence[Option], prog: str) -> None:
    """Refuse a command line without an environment if a flag with many values may have taken it as a value.

    Raises:
        ConfigurationError: says where to write ENV.
    """
    positional, with_values = values_by_option(words, options)
    if positional or asks_for_help(words):
        return
    for option, values in reversed(with_values):
        if not values or not option.takes_many:
            continue
        fits = (option.name == "network.hidden" and _is_whole(values[-1])) or (
            option.name == "env_kwargs" and len(values) % 2 == 0
        )
        if not fits:
            raise ConfigurationError(
                f"name an environment: {option.flag} takes all words behind it, also {values[-1]!r}: "
                f"write {prog} ENV {option.flag} ..., or -- before ENV"
            )


def _is_whole(word: str) -> bool:
    try:
        read_whole_number([word])
    except ValueError:
        return False
    return True


def _parse(kind: type[T], words: Sequence[str], prog: str, base: RunConfig) -> T:
    # With tyro, a flag replaces a dictionary's default: the arguments of the file are added afterwards.
    if not base.env_id:
        _refuse_swallowed(words, options_of(kind), prog)
    without_kwargs = base.model_copy(update={"env_kwargs": {}})
    layout = TRAIN_LAYOUT if kind is TrainOptions else SERIAL_LAYOUT
    options = parse_arguments(kind, words, prog, default=kind(config=without_kwargs), layout=layout)
    if options.config.env_id.endswith(".toml"):
        raise ConfigurationError(
            f"{options.config.env_id} is no environment: for a file of settings write --config in front of it"
        )
    changes: dict[str, Any] = {"env_kwargs": {**base.env_kwargs, **options.config.env_kwargs}}
    if options.config.init_from is not None:  # the learner may run elsewhere
        changes["init_from"] = str(Path(options.config.init_from).absolute())
    return replace(options, config=options.config.model_copy(update=changes))
