"""`dppo-redis bench solve`: seconds from the command until CartPole-v1 is solved, beside stable-baselines3.

Solved means that the mean of the last 100 training returns is 475. Start, imports and end are included. The
product has its default settings and no evaluation, which the peer has not either; the peer has the article's
hyper-parameters and 8 environments. In a round each kind runs once, one after the other, with the same seed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.peers.environments import STABLE_BASELINES3
from ops.bench.processes import stoppable
from ops.bench.rounds import add_common, as_json, check_repeats, in_rounds, ratios_to, shown
from ops.bench.runs import command_of, run, table

_PEER = "stable-baselines3, one process"
_MOST_ACTORS, _MOST_STEPS = 64, 10_000_000


@dataclass(frozen=True)
class Solved:
    """One run until the target, or until its budget is spent."""

    command_s: float  # from the command to its end
    steps: int | None  # until the target; None if it was not reached
    start_s: float | None = None  # from the command to the first update; a peer does not say
    end_s: float | None = None  # from the end of training to the summary


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table.

    Raises:
        ConfigurationError: a number is out of range.
    """
    options = _options(argv)
    measures: dict[str, Callable[[int], Solved]] = {}
    has_peer = STABLE_BASELINES3.python() is not None
    if has_peer:
        measures[_PEER] = partial(_peer, options.steps, options.target)
    else:
        print(
            f"{STABLE_BASELINES3.name} is not installed: {STABLE_BASELINES3.how_to_install()}",
            file=sys.stderr,
        )
    measures["dppo_redis, serial"] = partial(_ours, None, options.steps, options.target)
    fleet = f"dppo_redis, {options.actors} actor{'s' if options.actors > 1 else ''}"
    measures[fleet] = partial(_ours, options.actors, options.steps, options.target)
    with stoppable():
        found = in_rounds(measures, options.repeats)
    ratios = ratios_to(_PEER, _seconds(found)) if has_peer else {}
    if options.json:
        samples = {name: [asdict(one) for one in runs] for name, runs in found.items()}
        missing = [] if has_peer else [STABLE_BASELINES3.name]
        print(json.dumps(as_json(ratios, samples, unit=f"command s by {_PEER}", missing=missing)))
    else:
        _print_table(found, ratios, options.target)
    return ExitStatus.DONE


def _seconds(found: dict[str, list[Solved]]) -> dict[str, list[float]]:
    return {name: [one.command_s for one in runs] for name, runs in found.items()}


def _peer(steps: int, target: float, number: int) -> Solved:
    began = time.monotonic()
    outcome = STABLE_BASELINES3.play("dummy", steps, target, seed=number + 1)
    return Solved(round(time.monotonic() - began, 2), outcome.target_steps)


def _ours(actors: int | None, steps: int, target: float, number: int) -> Solved:
    words = [*command_of(actors, "CartPole-v1"), "--target-return", str(target), "--target-on", "train"]
    words += ["--total-steps", str(steps), "--evaluation.enabled", "false", "--seed", str(number + 1)]
    began = time.monotonic()
    summary = run(words)
    command_s = round(time.monotonic() - began, 2)
    return Solved(command_s, summary.target_step, summary.first_update_s, summary.end_s)


def _print_table(found: dict[str, list[Solved]], ratios: dict[str, list[float]], target: float) -> None:
    rows = []
    for name, runs in found.items():
        steps = [float(one.steps) for one in runs if one.steps is not None]
        rows.append(
            [
                name,
                f"{len(steps)} of {len(runs)}",
                shown(_seconds(found)[name], 1),
                shown(ratios[name]) if name in ratios else "-",
                _shown([one.start_s for one in runs]),
                _shown([one.end_s for one in runs]),
                f"{median(steps):,.0f}" if steps else "-",
            ]
        )
    header = ["", f"reached {target:g}", "command s", "ratio", "of it start s", "end s", "steps to it"]
    print(table(header, rows))
    print(f"\nMedians, with the lowest and the highest; {cores()} cores")


def _shown(seconds: Sequence[float | None]) -> str:
    known = [second for second in seconds if second is not None]
    return shown(known, 1) if known else "-"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench solve", description=__doc__)
    parser.add_argument("--actors", type=int, default=2, help="actors of the fleet")
    parser.add_argument("--steps", type=int, default=500_000, help="at most, of each run")
    parser.add_argument("--target", type=float, default=475.0, help="mean of the last 100 training returns")
    add_common(parser, 5, "each has another seed and takes a minute")
    options = parser.parse_args(argv)
    check_repeats(options.repeats)
    if not 1 <= options.actors <= _MOST_ACTORS:
        raise ConfigurationError(f"actors: from 1 to {_MOST_ACTORS} (got {options.actors})")
    if not 1 <= options.steps <= _MOST_STEPS:
        raise ConfigurationError(f"steps: from 1 to {_MOST_STEPS:,} (got {options.steps:,})")
    if not 0 < options.target <= 500:
        raise ConfigurationError(
            f"target: above 0, at most 500, which is an episode's length (got {options.target:g})"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
