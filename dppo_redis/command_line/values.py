"""Reads the values of a command line, by rules for tyro. Whole numbers are written as in a TOML file."""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, get_args

import tyro

_MOST_DIGITS = 18  # of a whole number; more digits do not fit into 64 bits
_EXPONENTS = {"k": 3, "m": 6, "b": 9, "g": 9}
_WITH_LETTER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)([kmbg])", re.IGNORECASE)


def read_whole_number(words: list[str]) -> int:
    """Read a whole number in any of these forms: 500000, 500_000, 5e5.

    Raises:
        ValueError: the word is not a whole number, or has more than 18 digits. For a word such as 1.5M the
            message says how to write the number.
    """
    (word,) = words
    if found := _WITH_LETTER.fullmatch(word):
        number, letter = found.groups()
        raise ValueError(f"{word!r} is not a whole number: write {number}e{_EXPONENTS[letter.lower()]}")
    try:
        number = Decimal(word)
    except InvalidOperation:
        raise ValueError(f"{word!r} is not a whole number") from None
    if number.is_finite() and number.adjusted() >= _MOST_DIGITS:
        raise ValueError(f"{word!r} is too large: a whole number has at most {_MOST_DIGITS} digits")
    if not number.is_finite() or (number and number.adjusted() < 0) or number != number.to_integral_value():
        raise ValueError(f"{word!r} is not a whole number")
    return int(number)


def _read_text(words: list[str]) -> str:
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
    str: ("TEXT", _read_text),
    Path: ("PATH", _read_path),
}
KINDS = tyro.constructors.ConstructorRegistry()


@KINDS.primitive_rule
def _plain_values(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """tyro's rule for numbers, texts, paths, tuples of these and optional ones.

    tyro's own rules refuse 1e6 as a whole number, which a TOML file may have. For `int | None` and
    `tuple[int, ...]` their messages list the types that were tried and do not name the mistake.
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
