"""The options that `train` and `serial` share: the run's configuration, its name and its directory."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.command_line.declared import Option, options_of
from dppo_redis.command_line.our_flags import values_by_option, with_our_flags
from dppo_redis.command_line.values import read_whole_number
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.service.arguments import asks_for_help, parse_arguments, parse_known, read_flags
from ops.help_layout import SERIAL_LAYOUT, TRAIN_LAYOUT

Resume = Annotated[Literal["", "last", "auto"], tyro.conf.arg(metavar="[auto]")]  # last: the flag alone


@dataclass(frozen=True)
class TrainOptions:
    """Train ENV with a fleet: Redis, one learner, the actors and an evaluator, under supervisord."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: RunConfig())
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML file with any of the settings; the command line wins"""
    run: str | None = None
    """Name of the run; default: environment, seed and time, with --resume auto without the time"""
    run_dir: Path | None = None
    """Directory of the run; default: runs/NAME"""
    redis: str | None = None
    """Use the Redis at this URL instead of an embedded one; default: DPPO_REDIS_URL, where set"""
    resume: Resume = ""
    """Go on from the last checkpoint in the run's directory; auto: begin, go on or show the end, as fits"""
    overwrite: bool = False
    """Remove what an earlier run left behind, under this name and in this directory"""
    json: bool = False
    """Print a JSON object as the last line of standard output"""
    event_log: Path | None = None
    """Directory to which each service appends what it did, for checking afterwards; default: none"""


@dataclass(frozen=True)
class SerialOptions:
    """Train ENV in one process, without Redis: the baseline that the fleet is compared with."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: RunConfig())
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML file with any of the settings; the command line wins"""
    run: str | None = None
    """Name of the run; default: environment, seed and time, with --resume auto without the time"""
    run_dir: Path | None = None
    """Directory of the run; default: runs/NAME"""
    age: Annotated[int, tyro.conf.arg(metavar="UPDATES")] = 0
    """Sample with the policy of this many updates ago: what old data does, exact and reproducible"""
    resume: Resume = ""
    """Go on from the last checkpoint in the run's directory; auto: begin, go on or show the end, as fits"""
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
    resume: Resume = ""
    overwrite: bool = False


def read_options(kind: type[T], argv: Sequence[str] | None, prog: str) -> T:
    """Parse a command line on top of its TOML file: --config, or that of the run to resume.

    Raises:
        ConfigurationError: a bad option, file or value.
    """
    words = _spelled_out(read_flags(kind, argv, prog), prog)
    known = parse_known(_BaseOptions, words, prog)
    file = known.config
    if known.resume == "auto" and known.overwrite:
        raise ConfigurationError("--resume auto decides by itself what may be removed: leave out --overwrite")
    if known.resume == "last" and (known.overwrite or file is not None):
        other = "--overwrite" if known.overwrite else "--config"
        raise ConfigurationError(f"--resume goes on with the run's own configuration: leave out {other}")
    if known.resume == "last" and (known.run_dir or known.run):
        files = RunFiles(known.run_dir or Path("runs", known.run or ""))
        if files.identity.exists() and not files.config.exists():
            raise ConfigurationError(f"{files.path} holds no {files.config.name}: its run cannot be resumed")
        file = files.config if files.config.exists() else None  # then there is nothing to resume
    return _parse(kind, words, prog, load_toml(file) if file is not None else RunConfig())


def read_options_of_run(kind: type[T], argv: Sequence[str] | None, prog: str, file: Path) -> T:
    """Parse a command line on top of its --config file, and that on top of the run's own configuration.

    Raises:
        ConfigurationError: as `read_options` does.
    """
    words = _spelled_out(with_our_flags(sys.argv[1:] if argv is None else argv, options_of(kind)).words, prog)
    base, given = load_toml(file), parse_known(_BaseOptions, words, prog).config
    if given is not None:
        changes = load_toml(given).model_dump(exclude_unset=True)
        base = RunConfig.model_validate(merged(base.model_dump(), changes))
    return _parse(kind, words, prog, base)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`, section by section."""
    sections = {
        name: merged(before, change)
        for name, change in changes.items()
        if isinstance(change, dict) and isinstance(before := values.get(name), dict)
    }
    return {**values, **changes, **sections}


def _spelled_out(given: Sequence[str], prog: str) -> list[str]:
    """The words with a value behind each --resume: the user may write `--resume` or `--resume auto`."""
    words: list[str] = []
    for word, following in itertools.zip_longest(given, given[1:]):
        flag, equals, value = word.partition("=")
        if equals and (flag == "--overwrite" or (flag == "--resume" and value != "auto")):
            mistake = f"argument {flag}: ignored explicit argument {value!r}"
            raise ConfigurationError(f"{mistake} (see {prog} --help)")
        words += [flag, value] if equals and flag == "--resume" else [word]
        if word == "--resume" and following != "auto":
            words.append("last")
    return words


def _refuse_swallowed(words: Sequence[str], options: Sequence[Option], prog: str) -> None:
    """Refuse a command line without an environment if a flag with many values may have taken it as a value.

    Raises:
        ConfigurationError: says where ENV belongs.
    """
    placed, given = values_by_option(words, options)
    if placed or asks_for_help(words):
        return
    for option, values in reversed(given):
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
    # A dictionary with a default could only be changed, not added to, on the command line.
    if not base.env_id:
        _refuse_swallowed(words, options_of(kind), prog)
    bare = base.model_copy(update={"env_kwargs": {}})
    layout = TRAIN_LAYOUT if kind is TrainOptions else SERIAL_LAYOUT
    options = parse_arguments(kind, words, prog, default=kind(config=bare), layout=layout)
    changes: dict[str, Any] = {"env_kwargs": {**base.env_kwargs, **options.config.env_kwargs}}
    if options.config.init_from is not None:  # the learner may run elsewhere
        changes["init_from"] = str(Path(options.config.init_from).absolute())
    return replace(options, config=options.config.model_copy(update=changes))
