"""A command line with our flags only: foreign names and short forms become ours, all others are refused."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dppo_redis.command_line.declared import Option
from dppo_redis.command_line.foreign_names import FOREIGN_NAMES, as_flag, find_foreign
from dppo_redis.errors import ConfigurationError

_SHORT = ("ppo", "network")  # sections whose settings may be typed without their section
_OF_PARSERS = ("help", "tyro-")
_LIKE_ONE = 0.6


@dataclass(frozen=True)
class OurWords:
    """A command line that has our flags only, and what was read as something else."""

    words: list[str]
    notes: list[str]


def with_our_flags(words: Sequence[str], options: Sequence[Option]) -> OurWords:
    """Read foreign names (`--ent-coef`), short forms (`--gamma`) and placed words as flags (`--env-id X`).

    Raises:
        ConfigurationError: a flag that is none of ours, with the nearest one or what to do instead.
    """
    placed: list[str] = []
    ours: list[str] = []
    notes: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            ours += [word, *rest]
            break
        if not word.startswith("--"):
            ours.append(word)
            continue
        typed, equals, value = word.partition("=")
        option, is_off, note = _find(typed, options)
        notes += [note] if note else []
        if option is None:
            ours.append(word)
        elif option.is_positional:
            if not equals and not rest:
                raise ConfigurationError(f"{typed} needs a value")
            placed.append(value if equals else rest.pop(0))
        elif option.is_switch:
            if not equals and rest and rest[0].lower() in ("true", "false"):
                is_off ^= rest.pop(0).lower() == "false"
            ours.append((off_flag(option) if is_off else on_flag(option)) + equals + value)
        else:
            ours.append(option.flag + equals + value)
    return OurWords([*placed, *ours], notes)


def settled(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Without the switches that say what holds anyway: a parser knows only the other direction."""
    idle = {
        (on_flag if option.default is True else off_flag)(option) for option in options if option.is_switch
    }
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word not in idle] + list(words[end:])


def values_by_option(
    words: Sequence[str], options: Sequence[Option]
) -> tuple[list[str], list[tuple[Option, list[str]]]]:
    """The words that have their place, and each option given with its values; `words` have our flags only."""
    flags = {flag: option for option in options for flag in (on_flag(option), off_flag(option))}
    placed: list[str] = []
    given: list[tuple[Option, list[str]]] = []
    free = 0  # values that the last option may still take
    for number, word in enumerate(words):
        if word == "--":
            return placed + list(words[number + 1 :]), given
        flag, equals, value = word.partition("=")
        if flag in flags:
            option = flags[flag]
            given.append((option, [value] if equals else []))
            free = 0 if equals or option.is_switch else len(words) if option.takes_many else 1
        elif free:
            given[-1][1].append(word)
            free -= 1
        else:
            placed.append(word)
    return placed, given


def shown_flag(option: Option) -> str:
    """As a message names it."""
    return option.metavar if option.is_positional else option.flag


def on_flag(option: Option) -> str:
    """What turns a switch on."""
    return as_flag(option.name)


def off_flag(option: Option) -> str:
    """What turns a switch off."""
    section, dot, name = option.name.rpartition(".")
    return as_flag(f"{section}{dot}no_{name}")


def _find(typed: str, options: Sequence[Option]) -> tuple[Option | None, bool, str]:
    """The option that a flag means, whether it is turned off, and a note where that is not plain to see.

    No option: the flag is one of the parser's own.
    """
    name = typed.removeprefix("--").replace("-", "_")
    if name.startswith(tuple(own.replace("-", "_") for own in _OF_PARSERS)):
        return None, False, ""
    for plain, is_off in _readings(name):
        option, note = _meant(typed, plain, options, is_off=is_off)
        if option is not None and (option.is_switch or not is_off):
            return option, is_off, note
    raise ConfigurationError(f"unknown option {typed}{_nearest(name, options)}")


def _readings(name: str) -> Iterator[tuple[str, bool]]:
    """A name as it is, and as that of a switch which is turned off: `no_lock_step`, `ppo.no_anneal_clip`."""
    yield name, False
    section, dot, last = name.rpartition(".")
    if last.startswith("no_"):
        yield f"{section}{dot}{last.removeprefix('no_')}", True


def _meant(typed: str, name: str, options: Sequence[Option], *, is_off: bool) -> tuple[Option | None, str]:
    by_name = {option.name: option for option in options}
    if name in by_name:
        return by_name[name], ""
    section, dot, last = name.rpartition(".")
    foreign = find_foreign(last)
    if foreign is not None and f"{section}{dot}" in ("", foreign.section):
        if foreign.ours in by_name:
            option = by_name[foreign.ours]
            shown = off_flag(option) if is_off else shown_flag(option)
            return option, f"{typed} is {shown} here{f' ({foreign.why})' if foreign.why else ''}"
        if foreign.why and any(option.name == "env_id" for option in options):
            raise ConfigurationError(f"{typed}: {foreign.explain(as_flag)}")
    if not section:
        for short in _SHORT:
            if f"{short}.{last}" in by_name:
                return by_name[f"{short}.{last}"], ""
    return None, ""


def _nearest(name: str, options: Sequence[Option]) -> str:
    last = name.rpartition(".")[2]
    if any(option.name.startswith(f"{name}.") for option in options):
        return f": its settings are {as_flag(name)}.NAME VALUE"
    named = [option.flag for option in options if option.name.rpartition(".")[2] == last]
    if named:
        return f": did you mean {' or '.join(named)}?"
    known = {option.name: option for option in options}
    known |= {option.name.rpartition(".")[2]: option for option in options}
    known |= {foreign.name: known[foreign.ours] for foreign in FOREIGN_NAMES if foreign.ours in known}
    for word in (name, last):
        close = difflib.get_close_matches(word, known, n=1, cutoff=_LIKE_ONE)
        if close:
            return f": did you mean {shown_flag(known[close[0]])}?"
    return ""
