"""Photographs: texts that people or other programs read, compared with those of an earlier release.

`PHOTOGRAPH=1` in the environment writes the snapshots again. Read the difference before you commit it.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

SNAPSHOTS = Path(__file__).parent / "snapshots"
_VARIABLE = "PHOTOGRAPH"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")  # boot ids and digests, some of which look like numbers


def photograph(name: str, text: str) -> None:
    """Fail with the difference unless snapshots/NAME holds exactly this text."""
    if os.environ.get(_VARIABLE) == "1":
        (SNAPSHOTS / name).parent.mkdir(parents=True, exist_ok=True)
        (SNAPSHOTS / name).write_text(_with_newline(text), encoding="utf-8")
        return
    found = difference(name, text)
    if found:
        pytest.fail(f"{found}\n(PHOTOGRAPH=1 writes it anew)", pytrace=False)


def difference(name: str, text: str) -> str:
    """The difference between snapshots/NAME and this text, with the file's name; empty if they are equal."""
    file = SNAPSHOTS / name
    stored = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = difflib.unified_diff(
        stored.splitlines(), _with_newline(text).splitlines(), f"snapshots/{name}", "now", lineterm=""
    )
    return "\n".join(lines)


def _with_newline(text: str) -> str:
    return text.rstrip("\n") + "\n"


def masked(text: str, places: Mapping[str, str]) -> str:
    """The text without differences between machines: {found: shown}, times and private folders are
    replaced."""
    for found, shown in places.items():
        text = text.replace(found, shown)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME", text)
    text = re.sub(r", line \d+, in ", ", line N, in ", text)
    return re.sub(r"/\S*/dppo-[a-z0-9_]{8}\b", "PRIVATE", text)


def kind(text: str) -> str:
    """The form of a text from Redis or a table: number, text, digest ..."""
    if not text or _HEX.fullmatch(text):
        return f"{len(text)} hex digits" if text else "empty"
    if re.fullmatch(r"-?\d+", text):
        return "int"
    return "float" if _NUMBER.fullmatch(text) else "text"


def kinds(fields: Mapping[str, str]) -> list[str]:
    """One line `name: kind` for each field."""
    return [f"{name}: {kind(value)}" for name, value in sorted(fields.items())]


def shape(value: Any) -> str:
    """Names and types in a JSON value, one line for each, in their order."""
    return "\n".join(_shape("", value))


def _shape(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _shape(f"{path}.{name}".lstrip("."), part)
    elif isinstance(value, list) and value:
        parts = sorted({line for part in value for line in _shape("", part)})
        yield f"{path}: list of {len(value)} [{', '.join(parts)}]"
    else:
        name = "null" if value is None else type(value).__name__
        yield f"{path}: {name}" if path else name
