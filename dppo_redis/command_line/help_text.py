"""The text of `--help`: what matters most, examples, and the rest by group, at the width of the terminal.

tyro's own text has one long list in declared order and shows defaults as Python writes them.
"""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dppo_redis.command_line.declared import Option

_COLUMN = 26  # where texts begin
_WIDEST = 100
_HELP = Option("help", "", "Show this text", False)


@dataclass(frozen=True)
class Group:
    """Options under one heading, by name; a name that ends with a dot stands for a whole section."""

    title: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """How a long text is arranged."""

    first: Group
    examples: tuple[tuple[str, str], ...]  # what for, and the command
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()


def help_text(prog: str, about: str, options: Sequence[Option], layout: Layout | None = None) -> str:
    """The whole text of a command."""
    width = max(60, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))
    placed = [option for option in options if option.is_positional]
    words = [_word(option) for option in placed]
    needed = [
        f"{option.flag} {option.metavar}" for option in options if option.is_required and option not in placed
    ]
    parts = [
        f"usage: {' '.join([prog, *words, *needed, '[OPTIONS]'])}",
        textwrap.fill(" ".join(about.split()), width),
    ]
    if layout is None:
        parts.append(_listed("Options", [_HELP, *options], width))
        return "\n\n".join(parts)
    parts.append(_listed(layout.first.title, _chosen(layout.first, options), width))
    parts.append("\n".join(["Examples:", *(f"  # {what}\n  {command}" for what, command in layout.examples)]))
    rest = [option for option in (_HELP, *options) if option.name not in layout.first.names]
    parts += [_listed(group.title, _chosen(group, rest), width) for group in layout.groups]
    parts += [textwrap.fill(note, width, break_on_hyphens=False) for note in layout.notes]
    return "\n\n".join(parts)


def _word(option: Option) -> str:
    shown = f"{option.metavar} ..." if option.takes_many else option.metavar
    return shown if option.is_required or option.default == "" else f"[{shown}]"


def _chosen(group: Group, options: Sequence[Option]) -> list[Option]:
    by_name = {option.name: option for option in options}
    chosen: list[Option] = []
    for name in group.names:
        if name.endswith("."):
            chosen += [option for option in options if option.name.startswith(name)]
        elif name in by_name:
            chosen.append(by_name[name])
    return chosen


def _listed(title: str, options: Sequence[Option], width: int) -> str:
    lines = [f"{title}:"]
    for option in options:
        shown = option.metavar if option.is_positional else f"{option.flag} {option.metavar}".rstrip()
        shown = "-h, --help" if option is _HELP else shown
        text = textwrap.wrap(_described(option), width - _COLUMN, break_on_hyphens=False)
        if len(shown) > _COLUMN - 4:
            lines.append(f"  {shown}")
        else:
            lines.append(f"  {shown:<{_COLUMN - 2}}{text.pop(0)}")
        lines += [f"{'':<{_COLUMN}}{line}" for line in text]
    return "\n".join(lines)


def _described(option: Option) -> str:
    if option.is_switch and option.default is True:
        return f"Off switch for: {option.help[:1].lower()}{option.help[1:]}"
    if option.is_required:
        return f"{option.help} (required)"
    if "default:" in option.help or (shown := _default(option.default)) is None or option.is_switch:
        return option.help
    return f"{option.help} (default: {shown})"


def _default(value: Any) -> str | None:
    """As it would be typed; None where there is nothing to show."""
    if value is None or value in ("", (), {}):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
