"""`dppo-redis bench uneven`: what waiting for slow steps costs, with and without lock step.

A step takes 5 ms in the mean, and one in a hundred 200 ms. The measure is one environment alone, in a bare
loop, times the environments of the fleet. It and all kinds of stepping run in turn. A fleet's rate counts
from its third update on, when all actors sample. Its environments sleep, so that two cores suffice.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from dppo_redis.errors import ConfigurationError, ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.processes import output_of, stoppable
from ops.bench.rounds import add_common, as_json, check_repeats, in_rounds, ratios_to, shown
from ops.bench.runs import REPOSITORY, run, table
from ops.bench.uneven.alone import rate_alone
from ops.bench.uneven.environment import ENV_ID
from ops.screens.curve import read_metrics

ALONE = "one environment alone"
ALONE_S = 4.0
_MEMORY_COUNTS = 4, 12  # environments
_FIRST = 2  # updates that are not counted
_MOST_STEPS = 10**7


@dataclass(frozen=True)
class Kind:
    """A way of stepping."""

    name: str
    vectorization: str
    most_open: int


@dataclass(frozen=True)
class Fleet:
    """What a fleet did, or for one environment alone its rate times the environments."""

    steps_per_s: float
    staleness: float | None = None
    stale: int = 0  # rollouts dropped


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table.

    Raises:
        ConfigurationError: a number is out of range.
    """
    options = _options(argv)
    environments = options.actors * options.envs_per_actor
    kinds = [Kind("async, in lock step", "async", 0)]
    for how in options.vectorization:
        kinds += [Kind(f"{how}, {most} open", how, most) for most in options.open_rollouts]
    measures: dict[str, Callable[[int], Fleet]] = {
        ALONE: lambda _: Fleet(environments * rate_alone(ALONE_S)),
        **{kind.name: partial(_measure, kind, options) for kind in kinds},
    }
    with stoppable():
        found = in_rounds(measures, options.repeats)
        memory = {kind.name: _memory_mb(kind) for kind in kinds}
    rates = {name: [one.steps_per_s for one in fleets] for name, fleets in found.items()}
    ratios = ratios_to(ALONE, rates)
    if options.json:
        samples = {name: [asdict(one) for one in fleets] for name, fleets in found.items()}
        print(json.dumps(as_json(ratios, samples, environments=environments, memory_mb=memory)))
        return ExitStatus.DONE
    print(table(["", "steps/s", f"of {environments} alone", "mean staleness", "stale", "MB an environment"], [
        [name, shown(rates[name], 0), shown(ratios.get(name, [1.0])), *_of_fleet(fleets, memory.get(name))]
        for name, fleets in found.items()
    ]))  # fmt: skip
    return ExitStatus.DONE


def _of_fleet(fleets: Sequence[Fleet], memory_mb: float | None) -> list[str]:
    known = [one.staleness for one in fleets if one.staleness is not None]
    if not known:
        return ["-", "-", "-"]
    return [f"{median(known):.2f}", str(sum(one.stale for one in fleets)), f"{memory_mb:.1f}"]


def _measure(kind: Kind, options: argparse.Namespace, number: int) -> Fleet:
    """Train with a fleet; its rate after the first updates."""
    rows = options.rollout_steps * options.envs_per_actor * options.actors
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as temporary:
        directory = Path(temporary, "run")
        sizes = {
            "actors": options.actors,
            "envs-per-actor": options.envs_per_actor,
            "rollout-steps": options.rollout_steps,
            "ppo.batch-steps": options.batch_steps or rows,
            "total-steps": options.steps,
            "vectorization": kind.vectorization,
            "open-rollouts": kind.most_open,
            "evaluation.enabled": "false",
            "seed": 1 + number,
        }
        words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        summary = run(["train", ENV_ID, *words], directory)
        updates = read_metrics(directory)
    first, last = updates[_FIRST], updates[-1]
    rate = (last.trained_steps - first.trained_steps) / (last.train_s - first.train_s)
    staleness = None if summary.staleness is None else summary.staleness.mean
    return Fleet(rate, staleness, 0 if summary.ledger is None else summary.ledger.stale)


def _memory_mb(kind: Kind) -> float:
    """Memory of one further environment."""
    module = "ops.bench.uneven.alone"
    few, many = (
        float(
            output_of(
                [sys.executable, "-m", module, kind.vectorization, str(kind.most_open), str(count)],
                REPOSITORY,
            )
        )
        for count in _MEMORY_COUNTS
    )
    return round((many - few) / (_MEMORY_COUNTS[1] - _MEMORY_COUNTS[0]), 2)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench uneven", description=__doc__)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--envs-per-actor", type=int, default=8)
    parser.add_argument("--rollout-steps", type=int, default=64, help="T")
    parser.add_argument("--batch-steps", type=int, help="of an update; default: a rollout of each actor")
    parser.add_argument("--steps", type=int, default=40_000, help="trained by each fleet")
    parser.add_argument("--open-rollouts", type=int, nargs="+", default=[1, 2, 3], help="rows of the table")
    parser.add_argument("--vectorization", nargs="+", choices=["async", "threads"], default=["async"])
    add_common(parser, 5, "20 s for each kind")
    options = parser.parse_args(argv)
    check_repeats(options.repeats)
    limits = {"actors": 64, "envs_per_actor": 256, "rollout_steps": 65_536, "steps": _MOST_STEPS}
    for name, most in limits.items():
        if not 1 <= getattr(options, name) <= most:
            raise ConfigurationError(f"{name}: from 1 to {most} (got {getattr(options, name)})")
    rows = options.batch_steps or options.actors * options.envs_per_actor * options.rollout_steps
    if rows < 8 or options.steps < (_FIRST + 3) * rows:
        raise ConfigurationError(f"steps: at least {(_FIRST + 3) * max(8, rows)}, five updates")
    if not all(1 <= most <= 64 for most in options.open_rollouts):
        raise ConfigurationError(f"open_rollouts: from 1 to 64 (got {options.open_rollouts})")
    return options


if __name__ == "__main__":
    sys.exit(main())
