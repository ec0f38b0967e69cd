"""The events in the services' event logs, without times and ids. Pure."""

import json
import re
from typing import Any

_RANDOM = re.compile(r"\d{13}-\d+|[0-9a-f]{16}")  # entry ids and boots in a list
_MASKED = ("time", "process", "id", "boot")


def read_events(text: str) -> list[dict[str, Any]]:
    """The events in order with all fields; values that differ between runs are masked."""
    return [
        {name: _masked(name, value) for name, value in json.loads(line).items()} for line in text.splitlines()
    ]


def _masked(name: str, value: Any) -> Any:
    if name in _MASKED:
        return "#"
    if isinstance(value, list):
        return [_masked("", item) for item in value]
    return "#" if not name and isinstance(value, str) and _RANDOM.fullmatch(value) else value


def until(events: list[dict[str, Any]], updates: int) -> list[dict[str, Any]]:
    """An actor's events until its last rollout that an update used. It may have begun another rollout."""
    last = [at for at, event in enumerate(events) if event.get("update") == updates - 1]
    return events[: last[-1] + 2] if last else events


def kinds(events: list[dict[str, Any]]) -> list[list[str]]:
    """Each kind of event once, with its fields, because the number of events depends on the clock."""
    return sorted({event["event"]: [str(event["event"]), *event] for event in events}.values())
