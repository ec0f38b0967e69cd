"""Settings as frozen values, checked when they are read; a mistake is one line that names the setting."""

import difflib
from typing import Annotated, Any, ClassVar, Self

import tyro
from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from dppo_redis.errors import ConfigurationError


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
    """A group of knobs; errors leave as one `ConfigurationError` line that names the knob."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    path: ClassVar[str] = ""
    formerly: ClassVar[dict[str, str]] = {}  # names of the release before, which are still read, and today's

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls.formerly and isinstance(values, dict):
            values = _with_present_names(cls, values)
        try:
            return handler(values)
        except ValidationError as error:
            raise ConfigurationError(_explain(cls, error)) from error


def _with_present_names(section: type[Section], values: dict[str, Any]) -> dict[str, Any]:
    for old, new in section.formerly.items():
        if old in values and new in values:
            raise ConfigurationError(
                f"{section.path}{old} is the former name of {section.path}{new}: leave it out"
            )
    return {section.formerly.get(name, name): value for name, value in values.items()}


def _explain(section: type[Section], error: ValidationError) -> str:
    first = error.errors()[0]
    knob = ".".join([section.path.rstrip("."), *(str(part) for part in first["loc"][:1])]).strip(".")
    if first["type"] == "extra_forbidden":
        known = [*section.model_fields, *section.formerly]
        close = difflib.get_close_matches(str(first["loc"][0]), known, n=1, cutoff=0.4)
        hint = (
            f"did you mean {section.path}{section.formerly.get(close[0], close[0])}?"
            if close
            else "see `dppo-redis train --help`"
        )
        return f"unknown setting {knob}: {hint}"
    message = first["msg"].removeprefix("Value error, ") + _allowed(section, first["loc"])
    return f"{knob or 'configuration'}: {message} (got {first['input']!r})" if knob else message


def _allowed(section: type[Section], loc: tuple[int | str, ...]) -> str:
    """The whole range of a numeric knob, as pydantic's own message names one end of it only."""
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
