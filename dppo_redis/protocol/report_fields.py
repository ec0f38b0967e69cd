"""Converts the reports of `reports.py` to and from text fields and JSON, and to curves. Pure."""

import json
import math
import sys
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from dppo_redis.spaces.metric_names import is_name

_LARGEST = sys.float_info.max
Fields = dict[str, str | int | float]  # as Redis and a csv file take them
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class Unit:
    """Unit and format of a report's field, for its annotation."""

    symbol: str = ""  # "steps", "s", "bytes" ...
    digits: int | None = None  # written after the decimal point; None: all
    tag: str = ""  # of its curve in TensorBoard; empty: it has none
    left_out: bool = False  # None is not written; if False, None is written as empty text, in JSON as null
    formerly: str = ""  # its name in the previous release, which is still written and read


@dataclass(frozen=True)
class Column:
    """Name, type and unit of a report's field, read from its annotation."""

    name: str
    kind: type[Any]  # str, int, float, bool, tuple (of texts), dict (of numbers) or another report
    nothing: Any  # the value of a missing field: None if the field may be None, else 0 or empty
    unit: Unit


def columns(report: type[Any]) -> tuple[Column, ...]:
    """The fields of a report, in order."""
    return _columns(cast(Hashable, report))


@cache
def _columns(report: Any) -> tuple[Column, ...]:
    hints = get_type_hints(report)
    unit = get_type_hints(report, include_extras=True)
    return tuple(
        _column(one.name, hints[one.name], getattr(unit[one.name], "__metadata__", (Unit(),))[0])
        for one in fields(report)
    )


def _column(name: str, hint: Any, unit: Unit) -> Column:
    origin = get_origin(hint)
    kinds = (origin,) if origin in (tuple, dict) else get_args(hint) or (hint,)
    kind = kinds[0]
    return Column(name, kind, None if NoneType in kinds or is_dataclass(kind) else kind(), unit)


def names(report: type[Any]) -> list[str]:
    """The names of a report's fields, in order."""
    return [column.name for column in columns(report)]


def to_fields(*reports: Any) -> Fields:
    """The fields of flat reports, one after another, as Redis and a csv file take them."""
    written = (pair for report in reports for pair in _written(report))
    return {name: _as_text(value) for name, value in written}


def _as_text(value: Any) -> str | int | float:
    """Texts become one JSON list, named numbers one JSON object, flags 1 or 0, None becomes empty text."""
    if isinstance(value, tuple | dict):
        return json.dumps(value)
    if isinstance(value, bool):
        return int(value)
    return "" if value is None else cast(str | int | float, value)


def to_json(report: Any) -> dict[str, Any]:
    """A report as one JSON object, in which each report that it holds is an object."""
    return {name: _as_json(value) for name, value in _written(report)}


def _as_json(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    return list(value) if isinstance(value, tuple) else value


def curves(report: Any) -> Iterator[tuple[str, float]]:
    """Tags and numbers of the curves in TensorBoard; a field that is None has no curve."""
    for column in columns(type(report)):
        value = getattr(report, column.name)
        if column.unit.tag and value is not None:
            yield column.unit.tag, value


def _written(report: Any) -> Iterator[tuple[str, Any]]:
    for column in columns(type(report)):
        value, unit = getattr(report, column.name), column.unit
        if value is not None or not unit.left_out:
            rounded = value if value is None or unit.digits is None else round(value, unit.digits)
            yield from ((name, rounded) for name in (column.name, unit.formerly) if name)


def from_fields(report: type[R], stored: Mapping[str, str], *, finite: bool = True) -> R:
    """Inverse of `to_fields` for any input: a field that is missing or no number becomes None, 0 or empty.

    Args:
        finite: infinite numbers and NaN are no numbers.
    """
    stored = with_present_names(report, stored)
    return report(**{c.name: _read(c, stored.get(c.name), finite) for c in columns(report)})


def with_present_names(report: type[Any], stored: Mapping[str, V]) -> Mapping[str, V]:
    """Fields that an earlier release stored, under their present names."""
    before = {c.unit.formerly: c.name for c in columns(report) if c.unit.formerly in stored}
    return {**{now: stored[old] for old, now in before.items()}, **stored}


def from_whole_fields(report: type[R], stored: Mapping[str, str]) -> R | None:
    """Inverse of `to_fields`; None where a field without a default is missing, or one is no number."""
    stored = with_present_names(report, stored)
    try:
        return _from_object(
            report, {c.name: _exactly(c, stored[c.name]) for c in columns(report) if c.name in stored}
        )
    except (KeyError, ValueError):
        return None


def _exactly(column: Column, text: str) -> Any:
    if column.kind is dict:
        numbers = _read_numbers(text)
        if numbers is None:
            raise ValueError(f"{column.name} is no JSON object")
        return numbers
    return bool(int(text)) if column.kind is bool else column.kind(text)


def from_json(report: type[R], text: str) -> R:
    """Inverse of `to_json`; a field that an earlier release did not write has its default.

    Raises:
        ValueError: it is no JSON object, or lacks a field.
    """
    try:
        return _from_object(report, json.loads(text))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no {report.__name__}: {error!r}") from error


def _from_object(report: type[R], values: Mapping[str, Any]) -> R:
    values = with_present_names(report, values)
    defaults = {
        one.name
        for one in fields(cast(Any, report))
        if one.default is not MISSING or one.default_factory is not MISSING
    }
    known = [column for column in columns(report) if column.name in values or column.name not in defaults]
    return report(**{column.name: _from_value(column, values[column.name]) for column in known})


def _from_value(column: Column, value: Any) -> Any:
    if value is None and column.nothing is None:
        return None
    return _from_object(column.kind, value) if is_dataclass(column.kind) else column.kind(value)


def _read(column: Column, text: str | None, finite: bool) -> Any:
    if text is None or column.kind is str:
        return column.nothing if text is None else text
    if column.kind is tuple:
        return _read_texts(text)
    if column.kind is dict:
        return _read_numbers(text) or {}
    try:
        value = float(text)
    except ValueError:
        return column.nothing
    is_number = math.isfinite(value) or (column.kind is float and not finite)
    return column.kind(value) if is_number else column.nothing


def _read_texts(text: str) -> tuple[str, ...]:
    """Read a JSON list of texts; items that are no texts are left out."""
    try:
        values = json.loads(text)
    except ValueError:
        return ()
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def _read_numbers(text: str) -> dict[str, float] | None:
    """Read a JSON object of named numbers without other items; None if the text is no object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    numbers = {name: x for name, x in values.items() if is_name(name) and type(x) in (int, float)}
    return {name: float(x) for name, x in numbers.items() if -_LARGEST <= x <= _LARGEST}
