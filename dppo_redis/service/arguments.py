"""Command lines: typed dataclasses parsed by tyro, every mistake one line and status 78."""

import contextlib
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar, get_args

import tyro

from dppo_redis.errors import ConfigurationError

T = TypeVar("T")
_USER_INFO = re.compile(r"(://[^\s:@/?#]*):\S*@")
_SECRET_PARAMETER = re.compile(r"([a-z_]*password)=[^&\s]*")
_FRAME = "╭╮╰╯│─+|"  # of a box, as tyro draws it for a terminal with and without UTF-8
_AFTER = ("Argument helptext", "For full helptext", "Full help")
_MARKERS = (tyro.conf.FlagCreatePairsOff,)
_MOST_DIGITS = 18  # of a whole number: more do not fit into 64 bits
_MULTIPLES = {"k": 3, "m": 6, "b": 9, "g": 9}
_WITH_MULTIPLE = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)([kmbg])", re.IGNORECASE)


def read_whole_number(words: list[str]) -> int:
    """A whole number as people write it: 500000, 500_000 or 5e5.

    Raises:
        ValueError: it is none, or has more than 18 digits; says how to write what was probably meant.
    """
    (word,) = words
    if multiple := _WITH_MULTIPLE.fullmatch(word):
        number, letter = multiple.groups()
        raise ValueError(f"{word!r} is not a whole number: write {number}e{_MULTIPLES[letter.lower()]}")
    try:
        number = Decimal(word)
    except InvalidOperation:
        raise ValueError(f"{word!r} is not a whole number") from None
    if number.is_finite() and number.adjusted() >= _MOST_DIGITS:
        raise ValueError(f"{word!r} is too large: a whole number has at most {_MOST_DIGITS} digits")
    if not number.is_finite() or (number and number.adjusted() < 0) or number != number.to_integral_value():
        raise ValueError(f"{word!r} is not a whole number")
    return int(number)


def _read_words(words: list[str]) -> str:
    return words[0]


def _read_path(words: list[str]) -> Path:
    return Path(words[0])


def _read_number(words: list[str]) -> float:
    try:
        return float(words[0])
    except ValueError:
        raise ValueError(f"{words[0]!r} is not a number") from None


_READERS: dict[Any, tuple[str, Callable[[list[str]], Any]]] = {
    int: ("INT", read_whole_number),
    float: ("FLOAT", _read_number),
    str: ("TEXT", _read_words),
    Path: ("PATH", _read_path),
}
_KINDS = tyro.constructors.ConstructorRegistry()


@_KINDS.primitive_rule
def _plain_values(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Numbers, texts and paths, several of one kind, or one that may be left out.

    tyro's own rules take no 1e6, which TOML files may have, for a whole number. About `int | None` and
    `tuple[int, ...]` they report which types were tried instead of what is wrong.
    """
    parts = get_args(info.type)
    is_optional = len(parts) == 2 and parts[1] is type(None)
    is_several = info.type_origin is tuple and len(parts) == 2 and parts[1] is Ellipsis
    kind = parts[0] if is_optional or is_several else info.type
    if kind not in _READERS:
        return None
    metavar, read = _READERS[kind]

    def read_all(words: list[str]) -> Any:
        if is_several:
            return tuple(read([word]) for word in words)
        return None if is_optional and words == ["None"] else read(words)

    def show(value: Any) -> list[str]:
        return [str(part) for part in value] if is_several else [str(value)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*" if is_several else 1,
        metavar=f"[{metavar} ...]" if is_several else metavar,
        instance_from_str=read_all,
        is_instance=lambda value: isinstance(value, tuple) if is_several else isinstance(value, kind),
        str_from_instance=show,
    )


def parse_arguments(kind: type[T], argv: Sequence[str] | None, prog: str, default: T | None = None) -> T:
    """Parse a command line into `kind`; `--help` prints and exits with 0.

    Raises:
        ConfigurationError: an unknown option or a bad value, with the nearest option.
    """
    given = tyro.MISSING_NONPROP if default is None else default
    with _mistakes_raised(prog):
        return tyro.cli(kind, args=argv, prog=prog, default=given, config=_MARKERS, registry=_KINDS)


def parse_known(kind: type[T], argv: Sequence[str] | None, prog: str) -> T:
    """Parse those options of a command line that `kind` has, `--help` not among them.

    Raises:
        ConfigurationError: one of them has a bad value.
    """
    with _mistakes_raised(prog):
        return tyro.cli(
            kind,
            args=argv,
            prog=prog,
            return_unknown_args=True,
            add_help=False,
            config=_MARKERS,
            registry=_KINDS,
        )[0]


@contextlib.contextmanager
def _mistakes_raised(prog: str) -> Iterator[None]:
    """Raise what tyro would print about a mistake.

    tyro 1.0 has no public API for it: it draws a box on standard error and exits. Its private module
    `_errors` has a hook, but without the sentences, and it may change in any release. So the box is
    captured here and its sentences are taken out: those before the help text, without the frame.
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
        said = [line for line in sentences if line.strip("-")]  # a line of these separates
        message = " ".join(said[:6]) or "bad command line"
        raise ConfigurationError(f"{hide_secrets(message)} (see {prog} --help)") from error


def hide_secrets(text: str) -> str:
    """The text, less the passwords of URLs in it: a message quotes what was typed."""
    return _SECRET_PARAMETER.sub(r"\1=***", _USER_INFO.sub(r"\1:***@", text))
