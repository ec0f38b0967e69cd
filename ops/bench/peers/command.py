"""`dppo-redis bench peers`: other PPO implementations and the product in one table.

All train CartPole-v1 with 8 environments, batch 2048, minibatch 256, 10 passes, learning rate 3e-4 and two
64x64 tanh networks, until the mean of the last 100 training returns reaches the target. They run one after
the other. stable-baselines3 always takes part, others are asked for with `--with`. A peer that is not
installed is named with the command that installs it, and one that fails with its error; the others run.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.peers import product
from ops.bench.peers.environments import RLLIB, SAMPLE_FACTORY, STABLE_BASELINES3, Outcome, Peer
from ops.bench.processes import ProgramFailedError, stoppable
from ops.bench.rounds import add_common, as_json, check_repeats, in_rounds, ratios_to, shown
from ops.bench.runs import table

_EXTRA = {"rllib": RLLIB, "sample-factory": SAMPLE_FACTORY}
_BASE = "stable-baselines3, one process"
_KINDS: dict[str, tuple[Peer, str]] = {  # row -> peer and variant
    _BASE: (STABLE_BASELINES3, "dummy"),
    "stable-baselines3, 8 processes": (STABLE_BASELINES3, "subproc"),
    "sample-factory, 2 workers": (SAMPLE_FACTORY, ""),
    "RLlib, 2 runners": (RLLIB, ""),
}
_MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Timed:
    """One training run."""

    outcome: Outcome
    command_s: float  # from the command to its end


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table.

    Raises:
        ConfigurationError: a number is out of range.
        ProgramFailedError: no program ran to its end.
    """
    options = _options(argv)
    kinds = wanted(options.others)
    missing = {peer.name: peer for peer, _ in kinds.values() if peer.python() is None}
    for peer in missing.values():
        print(f"{peer.name} is not installed: {peer.how_to_install()}", file=sys.stderr)
    measures: dict[str, Callable[[int], Timed | None]] = {
        name: partial(_timed, partial(peer.play, variant, options.steps, options.target))
        for name, (peer, variant) in kinds.items()
        if peer.name not in missing
    }
    for name, words in _ours(options.actors).items():
        measures[name] = partial(_timed, partial(product.play, words, options.steps, options.target))
    with stoppable():
        found = complete(in_rounds(measures, options.repeats))
    if not found:
        raise ProgramFailedError("none of the programs ran to its end")
    base = _BASE if _BASE in found else next(reversed(found))
    if options.json:
        print(json.dumps(_as_json(found, base, list(missing))))
    else:
        _print_table(found, base, options.target)
    return ExitStatus.DONE


def wanted(others: Sequence[str]) -> dict[str, tuple[Peer, str]]:
    """The peers of a call, row by row."""
    peers = [STABLE_BASELINES3, *(_EXTRA[name] for name in others)]
    return {name: kind for name, kind in _KINDS.items() if kind[0] in peers}


def _ours(actors: int) -> dict[str, list[str]]:
    """The product's rows: 8 environments in all, as the peers have them."""
    each = ["--envs-per-actor", str(8 // actors)]
    return {
        "dppo_redis, serial": ["serial", "CartPole-v1", "--envs-per-actor", "8"],
        f"dppo_redis, {actors} actors": ["train", "CartPole-v1", "--actors", str(actors), *each],
    }


def complete(samples: Mapping[str, Sequence[Timed | None]]) -> dict[str, list[Timed]]:
    """The kinds that failed in no round."""
    every = {name: [one for one in runs if one is not None] for name, runs in samples.items()}
    return {name: runs for name, runs in every.items() if len(runs) == len(samples[name])}


def _timed(play: Callable[[int], Outcome], number: int) -> Timed | None:
    """One run; None, with the error said, if it failed."""
    began = time.monotonic()
    try:
        outcome = play(number + 1)  # the seed
    except ProgramFailedError as error:
        print(error, file=sys.stderr)
        return None
    return Timed(outcome, time.monotonic() - began)


def _rates(found: dict[str, list[Timed]]) -> dict[str, list[float]]:
    return {name: [one.outcome.steps_per_s for one in runs] for name, runs in found.items()}


def _as_json(found: dict[str, list[Timed]], base: str, missing: list[str]) -> dict[str, object]:
    samples = {
        name: [{"command_s": round(one.command_s, 2), **asdict(one.outcome)} for one in runs]
        for name, runs in found.items()
    }
    return as_json(ratios_to(base, _rates(found)), samples, unit=f"steps/s by {base}", missing=missing)


def _print_table(found: dict[str, list[Timed]], base: str, target: float) -> None:
    ratios = ratios_to(base, _rates(found)) | {base: [1.0]}
    rows = []
    for name, runs in found.items():
        reached = [one for one in runs if one.outcome.target_s is not None]
        steps = [float(one.outcome.target_steps or 0) for one in reached]
        rows.append(
            [
                name,
                shown([one.outcome.steps_per_s for one in runs], 0),
                shown(ratios[name]),
                f"{len(reached)} of {len(runs)}",
                shown([one.outcome.target_s or 0.0 for one in reached], 1) if reached else "-",
                shown([one.command_s for one in reached], 1) if reached else "-",
                f"{median(steps):,.0f}" if reached else "-",
                shown([one.outcome.score for one in runs], 0),
            ]
        )
    header = ["", "steps/s", "ratio", f"reached {target:g}", "training s to it", "command s to it"]
    print(table([*header, "steps to it", "last 100 returns"], rows))
    print(f"\nMedians, with the lowest and the highest; {cores()} cores")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench peers", description=__doc__)
    parser.add_argument("--with", dest="others", default="", metavar="NAMES", help="rllib,sample-factory")
    parser.add_argument("--steps", type=int, default=250_000, help="at most, of each run")
    parser.add_argument("--target", type=float, default=475.0, help="mean of the last 100 training returns")
    parser.add_argument("--actors", type=int, default=2, choices=(1, 2, 4, 8), help="of the product's fleet")
    add_common(parser, 3, "each has another seed and takes a minute, with all peers two")
    options = parser.parse_args(argv)
    check_repeats(options.repeats)
    options.others = [name for name in options.others.split(",") if name]
    unknown = [name for name in options.others if name not in _EXTRA]
    if unknown:
        raise ConfigurationError(f"with: no peer {unknown[0]!r}; there are: {', '.join(_EXTRA)}")
    if not 2048 <= options.steps <= _MOST_STEPS:
        raise ConfigurationError(f"steps: from 2048 to {_MOST_STEPS} (got {options.steps})")
    return options


if __name__ == "__main__":
    sys.exit(main())
