"""Runs of the product with different settings, seed by seed in turn: their rates and returns.

The gain of a setting is judged as the article asks: by the return at a fixed time and by the time to a
fixed return. The fixed time is the shortest training time of all runs of a comparison.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from dppo_redis.protocol.reports import RunSummary, UpdateRecord
from ops.bench.rounds import in_rounds, shown
from ops.bench.runs import run
from ops.screens.curve import read_metrics

HEADER = ("", "steps/s", "last 100 returns", "at the same time", "s to the return", "staleness")


@dataclass(frozen=True)
class Played:
    """One run."""

    summary: RunSummary
    records: Sequence[UpdateRecord]

    @property
    def last_return(self) -> float:
        """Mean of the last 100 training returns at the end."""
        return self.summary.train_return_mean or 0.0

    def return_at(self, seconds: float) -> float:
        """Mean of the last 100 training returns after so many seconds of training; 0 before the first."""
        known = [r.return_mean for r in self.records if r.train_s <= seconds and r.return_mean is not None]
        return known[-1] if known else 0.0

    def seconds_to(self, wanted: float) -> float | None:
        """Training time until the mean of the last 100 returns reached `wanted`; None if it never did."""
        times = (r.train_s for r in self.records if r.return_mean is not None and r.return_mean >= wanted)
        return next(times, None)

    @property
    def largest_fall(self) -> float:
        """How far the mean of the last 100 returns fell below its highest value so far."""
        highest = fall = 0.0
        for record in self.records:
            highest = max(highest, record.return_mean or 0.0)
            fall = max(fall, highest - (record.return_mean or 0.0))
        return fall


def play_all(kinds: Mapping[str, Sequence[str]], repeats: int) -> dict[str, list[Played]]:
    """Each kind's command line with the seeds 1, 2, ..."""
    return in_rounds({name: partial(_play, words) for name, words in kinds.items()}, repeats)


def _play(words: Sequence[str], number: int) -> Played:
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as temporary:
        directory = Path(temporary) / "run"
        summary = run([*words, "--seed", str(number + 1), "--evaluation.enabled", "false"], directory)
        return Played(summary, read_metrics(directory))


def common_time(found: Mapping[str, Sequence[Played]]) -> float:
    """The shortest training time of all runs."""
    return min(played.summary.train_s for runs in found.values() for played in runs)


def rates(found: Mapping[str, Sequence[Played]]) -> dict[str, list[float]]:
    """Steps per second of each run."""
    return {name: [one.summary.steps_per_s for one in runs] for name, runs in found.items()}


def returns_at_common_time(found: Mapping[str, Sequence[Played]]) -> dict[str, list[float]]:
    """The return of each run at the common time."""
    seconds = common_time(found)
    return {name: [one.return_at(seconds) for one in runs] for name, runs in found.items()}


def rows_of(found: Mapping[str, Sequence[Played]], wanted: float) -> list[list[object]]:
    """A row for each kind under `HEADER`; `wanted` is the return for the time to a fixed return."""
    at_time = returns_at_common_time(found)
    rows: list[list[object]] = []
    for name, runs in found.items():
        reached = [s for s in (one.seconds_to(wanted) for one in runs) if s is not None]
        missed = f", {len(runs) - len(reached)} of {len(runs)} never" if len(reached) < len(runs) else ""
        staleness = [one.summary.staleness.mean for one in runs if one.summary.staleness is not None]
        rows.append(
            [
                name,
                shown([one.summary.steps_per_s for one in runs], 0),
                shown([one.last_return for one in runs], 0),
                shown(at_time[name], 0),
                (shown(reached, 1) if reached else "-") + missed,
                f"{median(staleness):.1f}" if staleness else "0",
            ]
        )
    return rows


def samples_of(found: Mapping[str, Sequence[Played]], wanted: float) -> dict[str, list[dict[str, object]]]:
    """What each run measured, for `--json`."""
    at_time = returns_at_common_time(found)
    return {
        name: [
            {
                "steps_per_s": one.summary.steps_per_s,
                "train_s": one.summary.train_s,
                "return": one.last_return,
                "return_at_common_time": at,
                "seconds_to_return": one.seconds_to(wanted),
                "largest_fall": round(one.largest_fall, 1),
                "staleness": one.summary.staleness.mean if one.summary.staleness else 0.0,
                "wait_share": one.summary.actor_wait_share,
            }
            for one, at in zip(runs, at_time[name], strict=True)
        ]
        for name, runs in found.items()
    }
