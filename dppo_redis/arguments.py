"""Command lines: typed dataclasses parsed by tyro, every mistake one line and status 78."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

import tyro

from dppo_redis.errors import ConfigurationError

T = TypeVar("T")
_USER_INFO = re.compile(r"(://[^\s:@/?#]*):\S*@")
_SECRET_PARAMETER = re.compile(r"([a-z_]*password)=[^&\s]*")
_FRAME = re.compile(r"[╭╮╰╯│─]+")


def parse_arguments(kind: type[T], argv: Sequence[str] | None, prog: str, default: T | None = None) -> T:
    """Parse a command line into `kind`; `--help` prints and exits with 0.

    Raises:
        ConfigurationError: an unknown option or a bad value, with the nearest option.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            if default is None:
                return tyro.cli(kind, args=argv, prog=prog, config=(tyro.conf.FlagCreatePairsOff,))
            return tyro.cli(
                kind, args=argv, prog=prog, default=default, config=(tyro.conf.FlagCreatePairsOff,)
            )
    except SystemExit as error:
        if error.code in (0, None):
            raise
        raise ConfigurationError(_one_line(errors.getvalue(), prog)) from error


def _one_line(box: str, prog: str) -> str:
    """The sentences of tyro's framed message before its help text, joined."""
    lines = [_FRAME.sub("", line).strip() for line in box.splitlines()[1:]]
    sentences: list[str] = []
    for line in lines:
        if line.startswith(("Argument helptext", "For full helptext", "Full help")):
            break
        if line:
            sentences.append(line)
    message = " ".join(sentences[:6]) or "bad command line"
    return f"{hide_secrets(message)} (see {prog} --help)"


def hide_secrets(text: str) -> str:
    """The text, less the passwords of URLs in it: a message quotes what was typed."""
    return _SECRET_PARAMETER.sub(r"\1=***", _USER_INFO.sub(r"\1:***@", text))
