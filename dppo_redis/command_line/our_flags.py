"""Replaces foreign names and short forms of flags on a command line by our flags; refuses unknown flags."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dppo_redis.command_line.declared import Option
from dppo_redis.command_line.foreign_names import COMMAND_LINE, FOREIGN_NAMES, as_flag, find_foreign
from dppo_redis.errors import ConfigurationError

_OPTIONAL_SECTIONS = ("ppo", "network")  # --gamma means --ppo.gamma
_SWITCH_VALUES = ("true", "false")
_FLAG_OF_PARSER = re.compile(r"help|tyro_.*")
_LEAST_SIMILARITY = 0.6  # for the question "did you mean ...?"
_LEAST_SIMILARITY_OF_WORDS = 0.75  # the same for a positional argument, which has no flag to mistype


@dataclass(frozen=True)
class OurWords:
    """A command line with our flags only, and a note for each replaced flag."""

    words: list[str]
    notes: list[str]


def with_our_flags(words: Sequence[str], options: Sequence[Option]) -> OurWords:
    """Replace foreign names (`--ent-coef`), short forms (`--gamma`) and flags such as `--env-id X` for ENV.

    Raises:
        ConfigurationError: an unknown flag; the message names the nearest one, or what to do instead.
    """
    positional: list[str] = []
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
            positional.append(value if equals else rest.pop(0))
        elif option.is_switch:
            if not equals and rest and rest[0].lower() in _SWITCH_VALUES:
                value = rest.pop(0)
            if value.lower() not in ("", *_SWITCH_VALUES):
                raise ConfigurationError(f"{typed} takes no value (got {value!r})")
            is_off ^= value.lower() == "false"
            ours.append(off_flag(option) if is_off else on_flag(option))
        else:
            ours.append(option.flag + equals + value)
    return OurWords([*positional, *ours], notes)


def without_default_switches(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Remove the switches that repeat their default. The parser knows only the flag that changes it."""
    unneeded = {
        (on_flag if option.default is True else off_flag)(option) for option in options if option.is_switch
    }
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word not in unneeded] + list(words[end:])


def values_by_option(
    words: Sequence[str], options: Sequence[Option]
) -> tuple[list[str], list[tuple[Option, list[str]]]]:
    """The positional arguments, and each option with its values. `words` must have our flags only."""
    flags = {flag: option for option in options for flag in (on_flag(option), off_flag(option))}
    positional: list[str] = []
    with_values: list[tuple[Option, list[str]]] = []
    free = 0  # values that the last option may still take
    for number, word in enumerate(words):
        if word == "--":
            return positional + list(words[number + 1 :]), with_values
        flag, equals, value = word.partition("=")
        if flag in flags:
            option = flags[flag]
            with_values.append((option, [value] if equals else []))
            free = 0 if equals or option.is_switch else len(words) if option.takes_many else 1
        elif free:
            with_values[-1][1].append(word)
            free -= 1
        else:
            positional.append(word)
    return positional, with_values


def shown_flag(option: Option) -> str:
    """The option's name in messages."""
    return option.metavar if option.is_positional else option.flag


def on_flag(option: Option) -> str:
    """The flag that turns a switch on."""
    return as_flag(option.name)


def off_flag(option: Option) -> str:
    """The flag that turns a switch off."""
    section, dot, name = option.name.rpartition(".")
    return as_flag(f"{section}{dot}no_{name}")


def _find(typed: str, options: Sequence[Option]) -> tuple[Option | None, bool, str]:
    """The option of a flag, whether the flag turns it off, and a note if the flag was replaced.

    The option is None for the parser's own flags, such as --help.

    Raises:
        ConfigurationError: the flag is unknown.
    """
    name = typed.removeprefix("--").replace("-", "_")
    if _FLAG_OF_PARSER.fullmatch(name):
        return None, False, ""
    for plain, is_off in _interpretations(name):
        option, note = _find_by_name(typed, plain, options, is_off=is_off)
        if option is not None and (option.is_switch or not is_off):
            return option, is_off, note
    raise ConfigurationError(f"unknown option {typed}{_nearest(name, options)}")


def _interpretations(name: str) -> Iterator[tuple[str, bool]]:
    """The name itself; for `no_lock_step` or `ppo.no_anneal_clip` also the switch that it turns off."""
    yield name, False
    section, dot, last = name.rpartition(".")
    if last.startswith("no_"):
        yield f"{section}{dot}{last.removeprefix('no_')}", True


def _find_by_name(
    typed: str, name: str, options: Sequence[Option], *, is_off: bool
) -> tuple[Option | None, str]:
    """The option of this name, foreign name or short form, and a note if it is a foreign name.

    Raises:
        ConfigurationError: a foreign name that has another meaning here.
    """
    by_name = {option.name: option for option in options}
    if name in by_name:
        return by_name[name], ""
    section, dot, last = name.rpartition(".")
    foreign = find_foreign(last)
    if foreign is not None and foreign.library != COMMAND_LINE:
        if foreign.ours in by_name and f"{section}{dot}" in ("", foreign.section):
            option = by_name[foreign.ours]
            shown = off_flag(option) if is_off else shown_flag(option)
            return option, f"{typed} is {shown} here{f' ({foreign.why})' if foreign.why else ''}"
        if not foreign.ours and any(option.name == "env_id" for option in options):
            raise ConfigurationError(f"{typed}: {foreign.explain(as_flag)}")
    if not section:
        for optional in _OPTIONAL_SECTIONS:
            if f"{optional}.{last}" in by_name:
                return by_name[f"{optional}.{last}"], ""
    return None, ""


def _nearest(name: str, options: Sequence[Option]) -> str:
    """The end of the message about an unknown flag: a question for the nearest option; "" if none is near."""
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
        close = difflib.get_close_matches(word, known, n=1, cutoff=_LEAST_SIMILARITY)
        if close and (not known[close[0]].is_positional or _is_similar(word, close[0])):
            return f": did you mean {shown_flag(known[close[0]])}?"
    return ""


def _is_similar(word: str, name: str) -> bool:
    return difflib.SequenceMatcher(None, word, name).ratio() >= _LEAST_SIMILARITY_OF_WORDS
