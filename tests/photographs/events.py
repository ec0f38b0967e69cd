"""What services wrote into their event logs. Pure: lines in, events without times and ids out."""

import json
import re
from typing import Any

_RANDOM = re.compile(r"\d{13}-\d+|[0-9a-f]{16}")  # entry ids and boots, where a list holds them
_MASKED = ("time", "process", "id", "boot")


def read_events(text: str) -> list[dict[str, Any]]:
    """In order, with all fields; what differs in each run is masked."""
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
    """An actor's until its last rollout for an update that took place: it may have begun another one."""
    last = [at for at, event in enumerate(events) if event.get("update") == updates - 1]
    return events[: last[-1] + 2] if last else events


def kinds(events: list[dict[str, Any]]) -> list[list[str]]:
    """Each kind of event once, with its fields: all that can be said where the clock decides how many."""
    return sorted({event["event"]: [str(event["event"]), *event] for event in events}.values())
