"""CPU time of both sides with their children: of an update, a rollout and a start, as ratios new / old.

The runs of a pair follow one another, so that a slow minute of the machine affects both.
"""

import math
import resource
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.photographs.configurations import LOCK_STEP
from tests.photographs.sides import Side, Sides

MOST_MEDIAN, MOST_UPPER = 1.03, 1.06
FEWEST_PAIRS = 6  # all of 5 values hold their median with 94 % only
_CARTPOLE = ("CartPole-v1", "--evaluation.interval-s", "86400", "--evaluation.episodes", "1")


@dataclass(frozen=True)
class Job:
    """A command, and the unit of its CPU time."""

    name: str
    words: tuple[str, ...]

    def units(self, summary: dict[str, Any]) -> int:
        """Updates of a serial run, rollouts of a fleet, 1 start."""
        if self.name == "rollout":
            return int(summary["ledger"]["trained"])
        return int(summary["updates"]) if self.name == "update" else 1


_JOBS = (
    Job("update", ("serial", *_CARTPOLE, "--env-steps", str(60 * 2048))),
    Job("rollout", ("train", *_CARTPOLE, *LOCK_STEP, "--rollout-steps", "32", "--env-steps", str(60 * 2048))),
    Job("start", ("train", *_CARTPOLE, "--ppo.batch-steps", "64", "--env-steps", "64")),
)


def compare(sides: Sides, pairs: int) -> bool:
    """Print the ratios; returns whether all are within the limits."""
    good = True
    for job in _JOBS:
        ratios = []
        for number in range(pairs):
            order = sides.both() if number % 2 == 0 else sides.both()[::-1]
            spent = {side.name: _cpu_s(side, job, number) for side in order}
            ratios.append(spent["new"] / spent["old"])
            print(f"  {job.name} {number + 1}: {spent['old']:.4f} s, {spent['new']:.4f} s", flush=True)
        good &= report(job.name, ratios)
    return good


def report(name: str, ratios: Sequence[float]) -> bool:
    """Print a job's result; returns whether it is within the limits."""
    median, (lower, upper) = statistics.median(ratios), median_interval(ratios)
    good = median <= MOST_MEDIAN and upper <= MOST_UPPER
    print(
        f"{'within' if good else 'BEYOND'} the limits ({MOST_MEDIAN}, {MOST_UPPER}): "
        f"CPU time per {name}, new / old: "
        f"median {median:.3f}, 95 % interval {lower:.3f} to {upper:.3f}, {len(ratios)} pairs"
    )
    return good


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median by the sign test, which assumes only independent pairs.

    Each value is below the median with probability 1/2, so the k-th smallest and largest enclose it unless
    fewer than k fall on one side: 2 * P(Binomial(n, 1/2) < k) <= 5 %.
    """
    ordered, count, tail, k = sorted(values), len(values), 0.0, 0
    while 2 * (tail := tail + math.comb(count, k) / 2**count) <= 0.05:
        k += 1
    skipped = max(0, k - 1)
    return ordered[skipped], ordered[count - 1 - skipped]


def _cpu_s(side: Side, job: Job, number: int) -> float:
    """User and system time of one run and its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = side.summary(*job.words, "--run", f"{job.name}-{number}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / job.units(summary)
