"""The base class of all settings: frozen values, checked when they are read. Also its error messages.

A mistake is one line that names the setting.
"""

import difflib
from typing import Annotated, Any, ClassVar, Self

import tyro
from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails

from dppo_redis.command_line.foreign_names import FOREIGN_NAMES, ForeignName, as_key, find_foreign
from dppo_redis.errors import ConfigurationError

_NEEDED = {  # by pydantic's type of error
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
}
_LIKE_OURS = 0.6  # least similarity of a mistyped name to a setting of the same section
_LIKE_ANOTHERS = 0.75  # least similarity to a setting of another section


def _read_switch(words: list[str]) -> bool:
    word = words[0].lower()
    if word not in ("true", "false"):
        raise ValueError(f"true or false (got {words[0]!r})")
    return word == "true"


Switch = Annotated[  # a flag with a value, true or false
    bool,
    tyro.conf.FlagConversionOff,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{true,false}",
        instance_from_str=_read_switch,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [str(value).lower()],
    ),
]


class Section(BaseModel):
    """A group of settings; errors leave as one `ConfigurationError` line that names the setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    path: ClassVar[str] = ""
    by_path: ClassVar[dict[str, type["Section"]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the section, so that messages can say which section a name belongs to."""
        super().__pydantic_init_subclass__(**kwargs)
        Section.by_path[cls.path] = cls

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(values, dict):
            values, _ = with_our_names(cls, values)
        try:
            return handler(values)
        except ValidationError as error:
            raise ConfigurationError(_explain(cls, error)) from error


def with_our_names(section: type[Section], values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Replace names of other libraries by ours; returns the settings, and a note for each replaced name.

    A foreign name may stand in the table of our setting or above all tables, as a flag may leave out its
    section.

    Raises:
        ConfigurationError: the values also have our name for the same setting.
    """
    ours: dict[str, Any] = {}
    notes: list[str] = []
    foreign_names: list[tuple[str, ForeignName]] = []
    for name, value in values.items():
        foreign = None if name in section.model_fields else find_foreign(str(name))
        table = Section.by_path.get(f"{section.path}{name}.")
        if foreign is not None and _is_setting(foreign.ours) and section.path in ("", foreign.section):
            foreign_names.append((name, foreign))
        elif table is not None and isinstance(value, dict):
            ours[name], of_table = with_our_names(table, value)
            notes += of_table
        else:
            ours[name] = value
    for name, foreign in foreign_names:
        path = foreign.section.removeprefix(section.path)
        target = ours.setdefault(path.rstrip("."), {}) if path else ours
        setting = foreign.ours.removeprefix(foreign.section)
        if not isinstance(target, dict):  # a wrong type, or a section that is already checked
            ours[name] = values[name]
            continue
        if setting in target:
            raise ConfigurationError(f"{section.path}{name} is another name of {foreign.ours}: leave it out")
        target[setting] = values[name]
        difference = f" ({foreign.why})" if foreign.why else ""
        notes.append(f"{section.path}{name} is {foreign.ours} here{difference}")
    return ours, notes


def _explain(section: type[Section], error: ValidationError) -> str:
    first = error.errors()[0]
    knob = ".".join([section.path.rstrip("."), *(str(part) for part in first["loc"][:1])]).strip(".")
    if first["type"] == "extra_forbidden":
        hint = _suggest(section, str(first["loc"][0]), first["input"])
        return f"unknown setting {knob}: {hint or 'see `dppo-redis train --help`'}"
    message = _in_plain_words(section, first)
    return f"{knob}: {message} (got {first['input']!r})" if knob else message


def _in_plain_words(section: type[Section], first: ErrorDetails) -> str:
    """Our own message for the usual mistakes, else pydantic's, which speaks of Python's types."""
    needed, range_ = _NEEDED.get(first["type"]), _range(section, first["loc"])
    if needed or range_:
        return f"must be {', '.join(filter(None, (needed, range_)))}"
    if first["type"] == "model_type":
        return "write a table of settings in TOML, a dict in Python"
    if first["type"] == "string_pattern_mismatch" and first["loc"]:
        described = section.model_fields[str(first["loc"][0])].description or ""
        return described[:1].lower() + described[1:]
    if first["type"] in ("too_short", "too_long"):
        least_or_most = "at least" if first["type"] == "too_short" else "at most"
        limit = first["ctx"].get("min_length", first["ctx"].get("max_length"))
        return f"must have {least_or_most} {limit} value{'' if limit == 1 else 's'}"
    return first["msg"].removeprefix("Value error, ").replace("Input should be ", "must be ", 1)


def _suggest(section: type[Section], name: str, value: Any) -> str:
    """A suggestion for a name that `section` does not have; "" if no setting is similar."""
    plain = name.lower().replace("-", "_")
    if meant := _named(section, plain):
        return _ask(section, *meant)
    if foreign := find_foreign(plain):
        if foreign.ours and not _is_setting(foreign.ours):
            return _suggest(section, foreign.ours, None)
        return _ask(section, foreign.ours) if foreign.ours else foreign.explain(as_key)
    if isinstance(value, dict):
        meant = [setting for key in value for setting in _named(section, str(key).lower())]
        return f"there is no such table; did you mean {meant[0]}?" if meant else ""
    if close := difflib.get_close_matches(plain, section.model_fields, n=1, cutoff=_LIKE_OURS):
        return f"did you mean {section.path}{close[0]}?"
    others = [name for other in Section.by_path.values() for name in other.model_fields]
    names = [*others, *(foreign.name for foreign in FOREIGN_NAMES if foreign.ours)]
    close = difflib.get_close_matches(plain, names, n=1, cutoff=_LIKE_ANOTHERS)
    return _suggest(section, close[0], None) if close else ""


def _is_setting(name: str) -> bool:
    """Whether a name with its section, for example `ppo.gamma`, is a setting."""
    path, dot, last = name.rpartition(".")
    return (
        last in Section.by_path[f"{path}{dot}"].model_fields if f"{path}{dot}" in Section.by_path else False
    )


def _ask(section: type[Section], *meant: str) -> str:
    is_above = section.path and not any("." in setting for setting in meant)
    return f"did you mean {' or '.join(meant)}{', above all [tables]' if is_above else ''}?"


def _named(section: type[Section], name: str) -> list[str]:
    """The settings of this name: that of `section`, else those of all other sections."""
    if name in section.model_fields:
        return [f"{section.path}{name}"]
    return [f"{other.path}{name}" for other in Section.by_path.values() if name in other.model_fields]


def _range(section: type[Section], loc: tuple[int | str, ...]) -> str:
    """The whole range of a numeric setting; pydantic's own message names only one end of it."""
    field = section.model_fields.get(str(loc[0])) if loc else None
    if field is None:
        return ""
    ends = [
        f"{words} {getattr(rule, name):{',' if getattr(rule, name) >= 10**6 else ''}}"
        for rule in field.metadata
        for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
        if hasattr(rule, name)
    ]
    return " and ".join(ends)
