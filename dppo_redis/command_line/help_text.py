"""Builds the text of `--help`: the most important options, examples, then the other options by group.

The text has the width of the terminal. tyro's own text is one long list in the order of declaration, and
shows defaults in Python's syntax.
"""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dppo_redis.command_line.declared import Option

_TEXT_COLUMN = 26  # where the texts of options begin
_MAX_WIDTH = 100
_HELP = Option("help", "", "Show this text", False)


@dataclass(frozen=True)
class Group:
    """Options under one heading, by name. A name that ends with a dot means all options of a section."""

    title: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The order of a long help text: first group, examples, other groups, notes."""

    first: Group
    examples: tuple[tuple[str, str], ...]  # purpose and command
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()


def help_text(prog: str, about: str, options: Sequence[Option], layout: Layout | None = None) -> str:
    """The help text of a command; without a layout, one list of all options."""
    width = max(60, min(_MAX_WIDTH, shutil.get_terminal_size((80, 24)).columns))
    positional = [_usage(option) for option in options if option.is_positional]
    required = [
        f"{option.flag} {option.metavar}"
        for option in options
        if option.is_required and not option.is_positional
    ]
    parts = [
        f"usage: {' '.join([prog, *positional, *required, '[OPTIONS]'])}",
        textwrap.fill(" ".join(about.split()), width),
    ]
    if layout is None:
        parts.append(_list_options("Options", [_HELP, *options], width))
        return "\n\n".join(parts)
    parts.append(_list_options(layout.first.title, _options_in(layout.first, options), width))
    parts.append(
        "\n".join(["Examples:", *(f"  # {purpose}\n  {command}" for purpose, command in layout.examples)])
    )
    rest = [option for option in (_HELP, *options) if option.name not in layout.first.names]
    parts += [_list_options(group.title, _options_in(group, rest), width) for group in layout.groups]
    parts += [textwrap.fill(note, width, break_on_hyphens=False) for note in layout.notes]
    return "\n\n".join(parts)


def _usage(option: Option) -> str:
    """A positional argument in the usage line, in square brackets if it may be left out."""
    shown = f"{option.metavar} ..." if option.takes_many else option.metavar
    return shown if option.is_required or option.default == "" else f"[{shown}]"


def _options_in(group: Group, options: Sequence[Option]) -> list[Option]:
    by_name = {option.name: option for option in options}
    members: list[Option] = []
    for name in group.names:
        if name.endswith("."):
            members += [option for option in options if option.name.startswith(name)]
        elif name in by_name:
            members.append(by_name[name])
    return members


def _list_options(title: str, options: Sequence[Option], width: int) -> str:
    lines = [f"{title}:"]
    for option in options:
        shown = option.metavar if option.is_positional else f"{option.flag} {option.metavar}".rstrip()
        shown = "-h, --help" if option is _HELP else shown
        text = textwrap.wrap(_describe(option), width - _TEXT_COLUMN, break_on_hyphens=False)
        if len(shown) > _TEXT_COLUMN - 4:
            lines.append(f"  {shown}")
        else:
            lines.append(f"  {shown:<{_TEXT_COLUMN - 2}}{text.pop(0)}")
        lines += [f"{'':<{_TEXT_COLUMN}}{line}" for line in text]
    return "\n".join(lines)


def _describe(option: Option) -> str:
    if option.is_switch and option.default is True:
        return f"Off switch for: {option.help[:1].lower()}{option.help[1:]}"
    if option.is_required:
        return f"{option.help} (required)"
    if "default:" in option.help or (shown := _default(option.default)) is None or option.is_switch:
        return option.help
    return f"{option.help} (default: {shown})"


def _default(value: Any) -> str | None:
    """A default as the user would type it; None if there is no default to show."""
    if value is None or value in ("", (), {}):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
