"""The differences between two photographs, by name and to the bit. Pure."""

import csv
import io
import struct
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch

# Columns and fields that depend on the wall clock, or on the time of a count.
TIMED = frozenset(
    ("train_s", "wait_s", "update_s", "wall_s", "steps_per_s", "evaluation_return", "evaluation_steps")
)
# Parts of a checkpoint that are random, or depend on rollouts after the last update.
# The keeper reads the boots once a second, and a short run may end earlier.
UNREPEATABLE = frozenset(("run", "marks", "last_entries_added", "actor_boots", "train_s"))
_SHOWN = 160


def differences(old: Any, new: Any, ignored: frozenset[str] = frozenset(), name: str = "") -> list[str]:
    """One line for each value that differs, with its path; `ignored` are keys of mappings at any depth."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _in_mappings(old, new, ignored, name)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return _in_sequences(old, new, ignored, name)
    if type(old) is not type(new) or _bits(old) != _bits(new):
        return [f"{name or 'it'}: {_parting(old, new)}"]
    return []


def _in_mappings(
    old: Mapping[Any, Any], new: Mapping[Any, Any], ignored: frozenset[str], name: str
) -> list[str]:
    found = (
        [] if list(old) == list(new) else [f"{name or 'keys'}: {_shown(list(old))} != {_shown(list(new))}"]
    )
    for key in old:
        if key in new and key not in ignored:
            found += differences(old[key], new[key], ignored, f"{name}.{key}".lstrip("."))
    return found


def _in_sequences(old: Sequence[Any], new: Sequence[Any], ignored: frozenset[str], name: str) -> list[str]:
    """The first difference only: after a missing item, everything differs."""
    for position, (mine, theirs) in enumerate(zip(old, new, strict=False)):
        if found := differences(mine, theirs, ignored, f"{name}[{position}]"):
            return found
    if len(old) == len(new):
        return []
    rest = [*old[len(new) :], *new[len(old) :]]
    return [
        f"{name or 'length'}: {len(old)} items != {len(new)}; the first without a partner: {_shown(rest[0])}"
    ]


def _bits(value: Any) -> Any:
    """A value that is equal only for equal bits: -0.0 differs from 0.0, and a NaN equals itself."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.contiguous().view(-1).numpy().tobytes()
    return struct.pack("<d", value) if isinstance(value, float) else value


def _parting(old: Any, new: Any) -> str:
    """Both values; for long texts, the part around the first difference."""
    if isinstance(old, str) and isinstance(new, str):
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        begin = sum(1 for _ in alike) - _SHOWN // 2
        if begin > 0:
            return f"{_shown(old[:40])} and, from {begin} on: {_shown(old[begin:])} != {_shown(new[begin:])}"
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old.shape == new.shape:
        return f"{int((old != new).sum())} of {old.numel()} values: {_shown(old)} != {_shown(new)}"
    return f"{_shown(old)} != {_shown(new)}"


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of metrics.csv, with unchanged texts."""
    return list(csv.DictReader(io.StringIO(text, newline="")))
