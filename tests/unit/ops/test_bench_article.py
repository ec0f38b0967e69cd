"""The measurements behind `docs/article.md`: what is computed from runs, and the forms on the wire."""

from dataclasses import replace

import numpy as np
import pytest

from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import RunSummary, UpdateRecord
from ops.bench.article.packing import FORMS, make_forms
from ops.bench.article.runs_compared import Played, common_time, returns_at_common_time, rows_of
from ops.bench.hostile import make_rollout
from tests.factories import make_spec

SUMMARY = RunSummary(
    reason="total_steps", settled_steps=1, trained_steps=1, wall_s=1.0, train_s=4.0, steps_per_s=10.0,
    updates=1, return_mean=None, return_episodes=0, target_step=None, train_return_mean=80.0, run_dir="",
)  # fmt: skip


def played(train_s: float, *points: tuple[float, float | None]) -> Played:
    """A run with (seconds, mean of the last 100 returns) of its updates."""
    record = from_fields(UpdateRecord, {})
    records = [replace(record, train_s=seconds, return_mean=mean) for seconds, mean in points]
    return Played(replace(SUMMARY, train_s=train_s), records)


def test_returns_are_compared_at_the_time_of_the_shortest_run() -> None:
    found = {
        "fast": [played(4.0, (1.0, None), (2.0, 50.0), (4.0, 80.0))],
        "slow": [played(8.0, (3.0, 20.0), (5.0, 60.0))],
    }
    assert common_time(found) == 4.0
    assert returns_at_common_time(found) == {"fast": [80.0], "slow": [20.0]}
    assert played(8.0, (3.0, 20.0)).return_at(2.9) == 0.0


def test_the_time_to_a_return_is_the_first_and_says_where_it_was_never_reached() -> None:
    runs = [played(4.0, (1.0, None), (2.0, 50.0), (3.0, 40.0), (4.0, 60.0)), played(4.0, (1.0, 49.0))]
    assert [one.seconds_to(50.0) for one in runs] == [2.0, None]
    (row,) = rows_of({"both": runs}, 50.0)
    assert row[4] == "2.0, 1 of 2 never"


def test_the_largest_fall_is_from_the_highest_return_before_it() -> None:
    assert played(4.0, (1.0, 30.0), (2.0, 90.0), (3.0, 60.0), (4.0, 95.0)).largest_fall == 30.0
    assert played(4.0, (1.0, None)).largest_fall == 0.0


@pytest.mark.parametrize("form", FORMS)
def test_each_form_on_the_wire_gives_the_same_arrays(form: str) -> None:
    spec = make_spec(rollout_steps=3, observation_size=4)
    rollout = make_rollout(spec)
    encode, decode = make_forms(spec)[form]
    entries = encode(rollout)
    assert len(entries) == (3 if form.endswith("a step") else 1)
    arrays = decode(entries)
    for name in ("observations", "actions", "log_probs", "rewards", "valid"):
        assert np.array_equal(arrays[name], getattr(rollout, name)), name
