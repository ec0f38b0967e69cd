"""A lock-step fleet of each side with event logs, behind a Redis whose MONITOR is recorded."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.photographs.commands import forms, in_order, read_monitor
from tests.photographs.comparing import differences
from tests.photographs.configurations import CARTPOLE, LOCK_STEP
from tests.photographs.events import kinds, read_events, until
from tests.photographs.server import Monitor, Server
from tests.photographs.sides import Side, Sides, at_once

_UPDATES = 60  # several rounds of the keeper


def _record(side: Side) -> dict[str, Any]:
    logs = side.place / "events"
    arguments = (
        "train",
        *CARTPOLE.arguments(_UPDATES),
        *LOCK_STEP,
        "--run",
        "recorded",
        "--event-log",
        str(logs),
    )
    with Server(side.place) as server, Monitor(server) as monitor:
        side.run(*arguments, "--redis", server.url)
    sent = read_monitor(monitor.lines())
    events = {file.stem: read_events(file.read_text()) for file in sorted(logs.iterdir())}
    return {
        "commands in order": in_order(sent, _UPDATES),
        "forms of commands": forms(sent),
        "events": {name: _comparable(name, found) for name, found in events.items()},
        "scripts and grants": _files(side.code, ".lua") + _files(side.code, ".conf"),
    }


def _comparable(service: str, events: list[dict[str, Any]]) -> list[Any]:
    if service.startswith("actor"):
        return until(events, _UPDATES)
    return events if service == "learner" else list(kinds(events))


def _files(code: Path, ending: str) -> list[tuple[str, bytes]]:
    """The files' contents by name. Their folders may change."""
    return sorted(
        (file.name, file.read_bytes())
        for room in ("dppo_redis", "ops")
        for file in (code / room).rglob(f"*{ending}")
    )


def photographs(sides: Sides) -> Iterator[tuple[str, list[str]]]:
    """Commands and events of both sides."""
    found = at_once({side.name: partial(_record, side) for side in sides.both()})
    for name in found["old"]:
        yield f"recorded run, {name}", differences(found["old"][name], found["new"][name])
