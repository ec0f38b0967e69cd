"""The base class of all settings: frozen values, checked when they are read. Also its error messages.

A mistake is one line that names the setting.
"""

import difflib
from typing import Annotated, Any, ClassVar, Self

import tyro
from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails

from dppo_redis.command_line.foreign_names import FOREIGN_NAMES, as_key, find_foreign
from dppo_redis.errors import ConfigurationError

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
    sections: ClassVar[list[type["Section"]]] = []

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the section, so that messages can say which section a name belongs to."""
        super().__pydantic_init_subclass__(**kwargs)
        Section.sections.append(cls)

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(values, dict):
            values = _with_our_names(cls, values)
        try:
            return handler(values)
        except ValidationError as error:
            raise ConfigurationError(_explain(cls, error)) from error


def _with_our_names(section: type[Section], values: dict[str, Any]) -> dict[str, Any]:
    """Replace names of other libraries by ours, at the place of the setting that they mean."""
    ours: dict[str, Any] = {}
    for name, value in values.items():
        foreign = None if name in section.model_fields else find_foreign(str(name))
        is_ours = foreign is not None and foreign.ours and foreign.section == section.path
        setting = foreign.ours.removeprefix(section.path) if foreign is not None and is_ours else name
        if setting != name and (setting in values or setting in ours):
            raise ConfigurationError(
                f"{section.path}{name} is another name of {section.path}{setting}: leave it out"
            )
        ours[setting] = value
    return ours


def _explain(section: type[Section], error: ValidationError) -> str:
    first = error.errors()[0]
    knob = ".".join([section.path.rstrip("."), *(str(part) for part in first["loc"][:1])]).strip(".")
    if first["type"] == "extra_forbidden":
        hint = _suggest(section, str(first["loc"][0]), first["input"])
        return f"unknown setting {knob}: {hint or 'see `dppo-redis train --help`'}"
    message = _in_plain_words(section, first) + _allowed(section, first["loc"])
    return f"{knob or 'configuration'}: {message} (got {first['input']!r})" if knob else message


def _in_plain_words(section: type[Section], first: ErrorDetails) -> str:
    """pydantic's message, or our own where pydantic's names Python classes or regular expressions."""
    if first["type"] == "model_type":
        return "write a table of settings in TOML, a dict in Python"
    if first["type"] == "string_pattern_mismatch" and first["loc"]:
        described = section.model_fields[str(first["loc"][0])].description or ""
        return described[:1].lower() + described[1:]
    return first["msg"].removeprefix("Value error, ")


def _suggest(section: type[Section], name: str, value: Any) -> str:
    """A suggestion for a name that `section` does not have; "" if no setting is similar."""
    plain = name.lower().replace("-", "_")
    if meant := _named(section, plain):
        return _ask(section, *meant)
    if foreign := find_foreign(plain):
        return _ask(section, foreign.ours) if foreign.ours else foreign.explain(as_key)
    if isinstance(value, dict):
        meant = [setting for key in value for setting in _named(section, str(key).lower())]
        return f"there is no such table; did you mean {meant[0]}?" if meant else ""
    if close := difflib.get_close_matches(plain, section.model_fields, n=1, cutoff=_LIKE_OURS):
        return f"did you mean {section.path}{close[0]}?"
    others = [name for other in Section.sections for name in other.model_fields]
    names = [*others, *(foreign.name for foreign in FOREIGN_NAMES if foreign.ours)]
    close = difflib.get_close_matches(plain, names, n=1, cutoff=_LIKE_ANOTHERS)
    return _suggest(section, close[0], None) if close else ""


def _ask(section: type[Section], *meant: str) -> str:
    is_above = section.path and not any("." in setting for setting in meant)
    return f"did you mean {' or '.join(meant)}{', above all [tables]' if is_above else ''}?"


def _named(section: type[Section], name: str) -> list[str]:
    """The settings of this name: that of `section`, else those of all other sections."""
    if name in section.model_fields:
        return [f"{section.path}{name}"]
    return [f"{other.path}{name}" for other in Section.sections if name in other.model_fields]


def _allowed(section: type[Section], loc: tuple[int | str, ...]) -> str:
    """The whole range of a numeric setting; pydantic's own message names only one end of it."""
    field = section.model_fields.get(str(loc[0])) if loc else None
    if field is None:
        return ""
    ends = {
        sign: getattr(rule, name)
        for rule in field.metadata
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if hasattr(rule, name)
    }
    return f"; allowed: {' and '.join(f'{sign} {end}' for sign, end in ends.items())}" if ends else ""
