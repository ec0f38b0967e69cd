"""When a fleet's start reached which point, read from the run's own events (`--event-log`)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NANOSECONDS = 1e9


@dataclass(frozen=True)
class Event:
    """One line of an event log."""

    name: str
    service: str
    time: float  # seconds since 1970
    process_began: float  # when the process opened its log, after its imports


def read_events(directory: Path) -> list[Event]:
    """The events of all services, in no order; a line that a killed process left incomplete is left out."""
    return [event for file in sorted(directory.glob("*.jsonl")) for event in _events_in(file)]


def _events_in(file: Path) -> Iterator[Event]:
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            values: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        began = int(values["process"].partition(".")[2]) / _NANOSECONDS
        yield Event(values["event"], values["service"], values["time"], began)


def moments(events: list[Event], began: float) -> dict[str, float]:
    """Seconds from `began` (since 1970) to each point of a start; a point that no event shows is left out."""
    actors = [event for event in events if event.service == "actor"]
    learner = [event for event in events if event.service == "learner"]
    reached = {
        "first actor has imported": _first(event.process_began for event in actors),
        "last actor has imported": _last(event.process_began for event in actors),
        "learner has imported": _first(event.process_began for event in learner),
        "learner leads": _first(_times(learner, "acquired")),
        "first weights published": _first(_times(learner, "published")),
        "first actor joined": _first(_times(actors, "joined")),
        "last actor joined": _last(_times(actors, "joined")),
        "first rollout arrived": _first(_times(actors, "confirmed")),
    }
    return {name: time - began for name, time in reached.items() if time is not None}


def _times(events: list[Event], name: str) -> Iterator[float]:
    return (event.time for event in events if event.name == name)


def _first(times: Iterator[float]) -> float | None:
    return min(times, default=None)


def _last(times: Iterator[float]) -> float | None:
    return max(times, default=None)
