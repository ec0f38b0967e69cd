"""`dppo-redis bench cartpole`: steps and seconds until CartPole-v1 is solved, default settings.

Greedy evaluation (20 episodes) and the last 100 training returns, each against 475, over seeds;
the fleet beside the serial baseline.
"""

import statistics
import sys
from collections.abc import Sequence

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.reports import RunSummary
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import command_of, name_of, run, table

TARGET = 475.0
BUDGETS = {"eval": 100_000, "train": 150_000}


def _row(actors: int | None, target_on: str, seeds: list[int]) -> tuple[list[str], list[RunSummary]]:
    results = []
    for seed in seeds:
        arguments = [*command_of(actors, "CartPole-v1"), "--seed", str(seed), "--target-on", target_on]
        arguments += ["--target-return", str(TARGET), "--total-steps", str(BUDGETS[target_on])]
        results.append(run(arguments))
    met = [r for r in results if r.target_step is not None and r.target_step <= BUDGETS[target_on]]
    steps = ", ".join(f"{r.target_step:,}" if r.target_step is not None else "not met" for r in results)
    seconds = ", ".join(f"{r.train_s:.1f}" for r in results)
    wall = f"{statistics.median(r.wall_s for r in results):.1f}"
    return [name_of(actors), target_on, f"{len(met)} of {len(seeds)}", steps, seconds, wall], results


def _fleet_row(actors: int, results: list[RunSummary]) -> list[str]:
    """Staleness and ledgers over all runs of one fleet size."""
    ledgers = [result.ledger for result in results if result.ledger is not None]
    staleness = [result.staleness for result in results if result.staleness is not None]
    settled = sum(ledger.entries_added - ledger.backlog for ledger in ledgers)
    stale = sum(ledger.stale for ledger in ledgers)
    mean, most = max(one.mean for one in staleness), max(one.max for one in staleness)
    imbalance = max(abs(ledger.imbalance) for ledger in ledgers)
    return [name_of(actors), f"{stale} of {settled}", f"{mean:.2f}", str(most), str(imbalance)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = BenchmarkParser(prog="dppo-redis bench cartpole", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args(argv)
    rows, fleet = [], []
    for actors in (None, *options.actors):
        results = []
        for target_on in BUDGETS:
            row, found = _row(actors, target_on, options.seeds)
            rows.append(row)
            results += found
        if actors is not None:
            fleet.append(_fleet_row(actors, results))
    header = [
        "",
        "target on",
        "seeds that met it",
        "environment steps to it",
        "seconds to it",
        "wall s, median",
    ]
    print(table(header, rows))
    print()
    print(table(["", "stale rollouts", "largest mean staleness", "largest staleness", "imbalance"], fleet))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
