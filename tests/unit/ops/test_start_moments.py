"""When a fleet's start reached which point, by the events that its services wrote."""

import json
from pathlib import Path

from ops.bench.start_moments import moments, read_events

BEGAN = 1000.0


def write(file: Path, service: str, imported_s: float, *events: tuple[str, float]) -> None:
    process = f"17.{int((BEGAN + imported_s) * 1e9)}"
    lines = [
        json.dumps({"event": name, "time": BEGAN + seconds, "service": service, "process": process})
        for name, seconds in events
    ]
    file.write_text("\n".join([*lines, '{"event":"cut']), encoding="utf-8")


def test_the_last_actor_counts_where_all_must_have_come_and_the_first_where_one_is_enough(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "learner.jsonl", "learner", 2.0, ("acquired", 2.1), ("published", 2.2), ("published", 9.0)
    )
    write(tmp_path / "actor_000.jsonl", "actor", 0.5, ("joined", 2.5), ("confirmed", 3.0))
    write(tmp_path / "actor_001.jsonl", "actor", 0.75, ("joined", 2.25), ("confirmed", 3.5))
    found = moments(read_events(tmp_path), BEGAN)
    assert {name: round(seconds, 3) for name, seconds in found.items()} == {
        "first actor has imported": 0.5,
        "last actor has imported": 0.75,
        "learner has imported": 2.0,
        "learner leads": 2.1,
        "first weights published": 2.2,
        "first actor joined": 2.25,
        "last actor joined": 2.5,
        "first rollout arrived": 3.0,
    }


def test_a_point_that_was_not_reached_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "learner.jsonl", "learner", 2.0, ("acquired", 2.1))
    assert [*moments(read_events(tmp_path), BEGAN)] == ["learner has imported", "learner leads"]
