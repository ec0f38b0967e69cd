"""Parses command lines into typed dataclasses with tyro; a mistake is one line and exit status 78."""

import contextlib
import inspect
import io
import itertools
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

import tyro

from dppo_redis.command_line.declared import Option, options_of
from dppo_redis.command_line.help_text import Layout, help_text
from dppo_redis.command_line.our_flags import values_by_option, with_our_flags, without_default_switches
from dppo_redis.command_line.values import KINDS
from dppo_redis.errors import ConfigurationError

T = TypeVar("T")
_USER_INFO = re.compile(r"(://[^\s:@/?#]*):\S*@")
_MISSING_VALUE = re.compile(r"Missing value for argument '(-[^']*)'\. Expected 1 values")
_WRONG_CHOICE = re.compile(r"invalid choice '(.*)' for argument '(-[^']*)'\. Expected one of \((.*?),?\)\.")
_NO_VALUE_TAKEN = re.compile(r"argument (-\S*): ignored explicit argument ('.*')")
_MISTAKE_IN_VALUE = "Error parsing "
_NO_PAIRS = "Failed to parse key-value pairs!"
_SECRET_PARAMETER = re.compile(r"([a-z_]*password)=[^&\s]*")
_FRAME = "╭╮╰╯│─+|"  # the box that tyro draws, with and without UTF-8
_AFTER = ("Argument helptext", "For full helptext", "Full help")
_MARKERS = (tyro.conf.FlagCreatePairsOff,)
_log = logging.getLogger("dppo")


def parse_arguments(
    kind: type[T],
    argv: Sequence[str] | None,
    prog: str,
    default: T | None = None,
    layout: Layout | None = None,
) -> T:
    """Parse a command line into `kind`; `--help` prints a text that `layout` arranges, and exits with 0.

    Raises:
        ConfigurationError: an unknown option or a bad value, with the nearest option.
    """
    options = options_of(kind, default)
    words = without_default_switches(read_flags(kind, argv, prog), options)
    if asks_for_help(words):
        sys.stdout.write(f"{help_text(prog, inspect.getdoc(kind) or '', options, layout)}\n")
        raise SystemExit(0)
    _refuse_stray_words(words, options, prog)
    _refuse_missing_options(words, options, prog)
    given = tyro.MISSING_NONPROP if default is None else default
    with _mistakes_raised(prog):
        return tyro.cli(kind, args=words, prog=prog, default=given, config=_MARKERS, registry=KINDS)


def read_flags(kind: type[T], argv: Sequence[str] | None, prog: str) -> list[str]:
    """The words of a command line, with flags replaced by those of `kind`; each replacement is logged.

    Raises:
        ConfigurationError: a flag that `kind` does not have.
    """
    try:
        ours = with_our_flags(sys.argv[1:] if argv is None else argv, options_of(kind))
    except ConfigurationError as error:
        raise ConfigurationError(f"{hide_secrets(str(error))} (see {prog} --help)") from error
    if ours.notes:
        _log.info("%s", "; ".join(ours.notes))
    return ours.words


def _refuse_stray_words(words: Sequence[str], options: Sequence[Option], prog: str) -> None:
    """Refuse words that belong to no argument, and short options other than -h."""
    placed, _ = values_by_option(words, options)
    takers = [option for option in options if option.is_positional]
    stray = [word for word in placed if word.startswith("-") and word != "-"]
    if not any(option.takes_many for option in takers):
        stray = stray or placed[len(takers) :]
    if stray:
        taken = [
            f"{option.metavar} is {word!r}"
            for option, word in zip(takers, placed, strict=False)
            if not word.startswith("-")
        ]
        before = f": {', '.join(taken)} already" if taken else ""
        raise ConfigurationError(hide_secrets(f"unexpected word {stray[0]!r}{before} (see {prog} --help)"))


def _refuse_missing_options(words: Sequence[str], options: Sequence[Option], prog: str) -> None:
    """Refuse a command line without a required option."""
    _, with_values = values_by_option(words, options)
    present = {option.name for option, _ in with_values}
    missing = [f"{o.flag} {o.metavar}" for o in options if o.is_required and o.name not in present]
    if missing:
        raise ConfigurationError(f"pass {' and '.join(missing)} (see {prog} --help)")


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether --help or -h is among the options."""
    return any(word in ("-h", "--help") for word in itertools.takewhile(lambda word: word != "--", words))


def parse_known(kind: type[T], argv: Sequence[str] | None, prog: str) -> T:
    """Parse the options of a command line that `kind` has; `--help` is not one of them.

    Raises:
        ConfigurationError: an option has a bad value.
    """
    with _mistakes_raised(prog):
        return tyro.cli(
            kind,
            args=argv,
            prog=prog,
            return_unknown_args=True,
            add_help=False,
            config=_MARKERS,
            registry=KINDS,
        )[0]


@contextlib.contextmanager
def _mistakes_raised(prog: str) -> Iterator[None]:
    """Turn the message that tyro prints about a mistake into an error.

    tyro 1.0 has no public API for it: it draws a box on standard error and exits. Its private module
    `_errors` has a hook, which does not get the sentences and may change in any release. So this function
    captures the box and takes the sentences before the help text out of its frame.
    """
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            yield
    except SystemExit as error:
        if error.code in (0, None):
            raise
        lines = [line.strip(_FRAME + " ") for line in box.getvalue().splitlines()[1:]]
        sentences = itertools.takewhile(lambda line: not line.startswith(_AFTER), lines)
        said = [line for line in sentences if line.strip("-")]  # a line of dashes separates
        message = _in_plain_words(" ".join(said[:6])) or "bad command line"
        raise ConfigurationError(f"{hide_secrets(message)} (see {prog} --help)") from error


def _in_plain_words(message: str) -> str:
    """tyro's sentence, or our own if tyro's does not say what to write."""
    if missing := _MISSING_VALUE.match(message):
        return f"{missing[1]} needs a value behind it"
    if wrong := _WRONG_CHOICE.match(message):
        return f"{wrong[2]}: must be one of {wrong[3].replace(chr(39), '')} (got {wrong[1]!r})"
    if taken := _NO_VALUE_TAKEN.match(message):
        return f"{taken[1]} takes no value (got {taken[2]})"
    pairs = "write a name and a value for each, with a space between: NAME VALUE ..."
    return message.removeprefix(_MISTAKE_IN_VALUE).replace(_NO_PAIRS, pairs)


def hide_secrets(text: str) -> str:
    """The text without the passwords of its URLs, because a message quotes the user's words."""
    return _SECRET_PARAMETER.sub(r"\1=***", _USER_INFO.sub(r"\1:***@", text))
