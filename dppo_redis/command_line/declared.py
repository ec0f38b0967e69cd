"""Reads the options of a command from the dataclasses and settings that tyro parses."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

if TYPE_CHECKING:  # a command without settings does not import pydantic
    from pydantic import BaseModel

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Option:
    """One option of a command line: a flag or a positional argument."""

    name: str  # for example ppo.batch_steps
    metavar: str  # name of the value in help texts; "" for a switch
    help: str
    default: Any
    is_positional: bool = False
    is_required: bool = False
    takes_many: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether the option takes no value."""
        return not self.metavar

    @property
    def flag(self) -> str:
        """The flag as typed: `--ppo.batch-steps`; for a switch that is on by default, `--no-...`."""
        section, dot, name = self.name.rpartition(".")
        off = "no-" if self.is_switch and self.default is True else ""
        return f"--{section}{dot}{off}{name}".replace("_", "-")


def options_of(kind: type[Any], instance: Any = None) -> tuple[Option, ...]:
    """All options of a command's dataclass. The name of a setting begins with the name of its section.

    `instance`, if given, provides the defaults.
    """
    if _is_settings(kind):
        return tuple(_options_of_settings(kind, "", instance))
    return tuple(_options_of_dataclass(kind, instance))


def _options_of_dataclass(kind: type[Any], instance: Any) -> Iterator[Option]:
    hints, texts = get_type_hints(kind, include_extras=True), _docstrings(kind)
    for field in dataclasses.fields(kind):
        annotation, markers = _unwrapped(hints[field.name])
        chosen = _configured(markers, "name")
        name = field.name if chosen is None else chosen
        value = None if instance is None else getattr(instance, field.name)
        if _is_settings(annotation):
            yield from _options_of_settings(annotation, name, value)
            continue
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = field.default if instance is None and not is_required else value
        option = _option(name, annotation, markers, texts.get(field.name, ""), default)
        yield dataclasses.replace(option, is_required=is_required and instance is None)


def _is_settings(kind: Any) -> TypeGuard["type[BaseModel]"]:
    """Whether it is a model of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def _options_of_settings(model: "type[BaseModel]", path: str, instance: Any) -> Iterator[Option]:
    for name, field in model.model_fields.items():
        whole, annotation = f"{path}.{name}" if path else name, field.annotation
        default = field.get_default(call_default_factory=True, validated_data={})
        value = default if instance is None else getattr(instance, name)
        if _is_settings(annotation):
            yield from _options_of_settings(annotation, whole, value)
        else:
            yield _option(whole, annotation, tuple(field.metadata), field.description or "", value)


def _option(name: str, annotation: Any, markers: tuple[Any, ...], text: str, default: Any) -> Option:
    metavar, takes_many = _metavar(annotation, markers)
    takes_many = takes_many or get_origin(annotation) is tuple
    is_positional = tyro.conf.Positional in markers
    if is_positional:
        metavar = _configured(markers, "metavar") or name.upper()
    return Option(name, metavar, " ".join(text.split()), default, is_positional, takes_many=takes_many)


def _metavar(annotation: Any, markers: tuple[Any, ...]) -> tuple[str, bool]:
    """The name of an option's value in help texts, and whether the option takes any number of values."""
    if configured := _configured(markers, "metavar"):
        return str(configured), False
    kind, markers = _unwrapped(annotation)
    if configured := _configured(markers, "metavar"):
        return str(configured), False
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _metavar(next(part for part in parts if part is not NoneType), ())
    if origin is Literal:
        return f"{{{','.join(map(str, parts))}}}", False
    if origin is tuple:
        return f"[{_METAVARS[parts[0]]} ...]", True
    if origin is dict:
        return "[NAME VALUE ...]", True
    return _METAVARS.get(kind, ""), False


def _unwrapped(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(annotation) is Annotated:
        kind, *markers = get_args(annotation)
        return kind, tuple(markers)
    return annotation, ()


def _configured(markers: tuple[Any, ...], attribute: str) -> Any:
    """The attribute that `tyro.conf.arg` or a value's constructor sets, for example `metavar`; else None."""
    values = (getattr(marker, attribute, None) for marker in markers)
    return next((value for value in values if value is not None), None)


def _docstrings(kind: type[Any]) -> Mapping[str, str]:
    """The docstring of each attribute of a class, by name. Empty if the source file is missing."""
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    (body,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(body, ast.ClassDef)
    return {
        declared.target.id: text.value.value
        for declared, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(declared, ast.AnnAssign)
        and isinstance(declared.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
