"""`dppo-redis bench scale`: a run with 10, 100 and 1,000 actors on one Redis.

The actors are the product's, each with its own connections, slot and registration, many in a process; their
environment waits instead of computing. They leave and join all the time, and once one of their processes is
killed. The learner is the product's without the training: lease, intake, settling, publications, keeper.
The ratio is that of the steps delivered to those that the environments could make.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from statistics import median
from typing import Any

from dppo_redis.environments.child import spaces_of
from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus, StoppedError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import TransientError, translated
from learner.malloc import keep_freed_memory
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import table
from ops.bench.scale.environment import ENV_ID
from ops.bench.scale.measured import PARTS, Measured, Wish, percentile
from ops.bench.scale.point import Point
from ops.bench.scale.server import bench_run, check_connections, server
from ops.fleet.machine_limits import FleetNeeds, check_limits

ROLLOUT_STEPS = 2
CONNECTIONS = 3  # of an actor: pushes, the rest, the watchdog
_OTHER_FILES = 64
_MOST_ACTORS = 4096
_MOST_PLANNED = 1000
_MOST_PROCESSES = 64


def configuration(planned: int, period_s: float, rollout_kb: int) -> RunConfig:
    """A run with a batch of one rollout of each planned actor."""
    values: dict[str, Any] = {
        "env_id": ENV_ID,
        "env_kwargs": {
            "step_s": period_s / ROLLOUT_STEPS,
            "numbers": max(1, rollout_kb * 1024 // 4 // ROLLOUT_STEPS),
        },
        "actors": planned,
        "envs_per_actor": 1,
        "rollout_steps": ROLLOUT_STEPS,
        "vectorization": "sync",
        "total_steps": 10**12,
        "network": {"hidden": [2]},
        "ppo": {"batch_steps": max(8, ROLLOUT_STEPS * planned), "minibatch_size": ROLLOUT_STEPS},
    }
    return RunConfig.model_validate(values)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    options = _options(argv)
    stop = StopRequest().install()
    keep_freed_memory()  # as a learner
    needs = FleetNeeds(
        files=_OTHER_FILES + max(options.actors) * CONNECTIONS,
        tasks=_OTHER_FILES + max(options.actors) + 2 * options.processes,
    )
    check_limits(needs)
    found: list[Measured] = []
    with server(options.redis) as url:
        try:
            check_connections(url, needs.files, stop)
            for actors in options.actors:
                found.append(_measure(actors, options, url, stop))
                print(f"measured {actors} actors", file=sys.stderr, flush=True)
        except (StoppedError, TransientError):
            if not stop.requested:
                raise
            return stop.exit_status
    print(json.dumps(_as_json(found)) if options.json else _tables(found))
    faults = [f"{one.wish.actors} actors: {fault}" for one in found for fault in one.faults]
    for fault in faults:
        print(f"dppo-redis: {fault}", file=sys.stderr)
    return ExitStatus.FAILED if faults else ExitStatus.DONE


def _measure(actors: int, options: argparse.Namespace, url: str, stop: StopRequest) -> Measured:
    """One point of the curve.

    Raises:
        StoppedError: a stop was requested.
        TransientError: the server does not answer any more.
    """
    config = configuration(min(actors, options.planned or _MOST_PLANNED), options.period, options.rollout_kb)
    planned = plan(config, spaces_of(config, stop), serial=False)
    wish = Wish(
        actors=actors,
        planned=config.actors,
        processes=min(options.processes, actors),
        seconds=options.seconds,
        step_s=options.period / ROLLOUT_STEPS,
        churn=options.churn,
        kills=options.kill,
    )
    with closing(Point(wish, planned, url, bench_run(), stop)) as point, translated():
        return point.measure()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench scale", description=__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[10, 100, 1000], metavar="N")
    parser.add_argument(
        "--planned", type=int, help="actors that the run is planned for; default: all, at most 1000"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="measured for each number of actors")
    parser.add_argument("--period", type=float, default=2.0, help="seconds that a rollout takes")
    parser.add_argument("--rollout-kb", type=int, default=64, help="size of a rollout")
    parser.add_argument("--churn", type=float, default=0.5, help="share of the actors replaced in a minute")
    parser.add_argument("--processes", type=int, default=4, help="that hold the actors")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="kill none of them")
    parser.add_argument("--redis", help="URL; default: a server of its own, as `train` starts it")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    options = parser.parse_args(argv)
    bounds: list[tuple[str, float, float, Sequence[float]]] = [
        ("actors", 1, _MOST_ACTORS, options.actors),
        ("planned", 1, _MOST_PLANNED, [options.planned or 1]),
        ("seconds", 0.5, 86_400, [options.seconds]),
        ("period", 0.01, 3600, [options.period]),
        ("rollout-kb", 1, 64 * 1024, [options.rollout_kb]),
        ("churn", 0, 60, [options.churn]),
        ("processes", 1, _MOST_PROCESSES, [options.processes]),
    ]
    for name, least, most, values in bounds:
        for value in values:
            if not least <= value <= most:
                raise ConfigurationError(f"{name}: from {least:g} to {most:g} (got {value:g})")
    if options.seconds < PARTS * options.period:
        refusal = f"seconds: at least {PARTS} times the period, {PARTS * options.period:g}"
        raise ConfigurationError(f"{refusal} (got {options.seconds:g})")
    return options


def _as_json(found: Sequence[Measured]) -> dict[str, Any]:
    samples = {one.wish.actors: [round(share, 4) for share in one.shares] for one in found}
    last = found[-1].shares
    return {
        "ratio": round(median(last), 4),
        "samples": samples,
        "spread": [round(min(last), 4), round(max(last), 4)],
        "cores": cores(),
        "unit": "steps delivered by those that the environments could make, most actors last",
        "points": [_point(one) for one in found],
    }


def _point(one: Measured) -> dict[str, Any]:
    plain = {
        name: value for name, value in asdict(one).items() if name not in ("push_ms", "fetch_ms", "wish")
    }
    plain = {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()}
    return {
        **asdict(one.wish),
        **plain,
        "push_ms": {name: round(percentile(one.push_ms, share), 2) for name, share in _PERCENTILES.items()},
        "fetch_ms": {name: round(percentile(one.fetch_ms, share), 2) for name, share in _PERCENTILES.items()},
        "keeper_ms": round(median(one.keeper_ms), 2),
        "status_s": [round(seconds, 3) for seconds in one.status_s],
        "status_cpu_s": [round(seconds, 3) for seconds in one.status_cpu_s],
        "rates": [round(rate, 2) for rate in one.rates],
        "faults": one.faults,
    }


_PERCENTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def _tables(found: Sequence[Measured]) -> str:
    flow = [
        [
            one.wish.actors,
            f"{one.rate / ROLLOUT_STEPS:.1f}",
            f"{median(one.shares):.3f}",
            f"{min(one.shares):.3f} to {max(one.shares):.3f}",
            " / ".join(f"{percentile(one.push_ms, share):.1f}" for share in _PERCENTILES.values()),
            " / ".join(f"{percentile(one.fetch_ms, share):.1f}" for share in _PERCENTILES.values()),
            f"{median(one.status_s or [0.0]):.2f} ({median(one.status_cpu_s or [0.0]):.2f})",
            f"{one.staleness_mean:.2f} / {one.staleness_max}",
        ]
        for one in found
    ]
    head = [
        "actors", "whole rollouts/s", "ratio", "spread", "push ms p50 / p99 / max", "fetch ms",
        "status s (CPU)", "staleness mean / max",
    ]  # fmt: skip
    costs = [
        [
            one.wish.actors,
            f"{one.started_s:.1f}",
            f"{one.joined} / {one.left} / {one.killed}",
            one.connections,
            f"{one.server_mb:.0f}",
            " / ".join(f"{share:.2f}" for share in (one.server_cpu, one.learner_cpu, one.actors_cpu)),
            f"{median(one.keeper_ms):.0f}",
            _ledger(one),
        ]
        for one in found
    ]
    cost_head = [
        "actors", "started in s", "joined / left / killed", "connections", "server MB",
        "cores of server / learner / actors", "keeper ms of CPU", "ledger",
    ]  # fmt: skip
    return "\n\n".join(
        [
            table(head, flow),
            table(cost_head, costs),
            f"ratio: steps delivered by those that the environments could make; {cores()} cores",
        ]
    )


def _ledger(one: Measured) -> str:
    ledger = one.ledger
    dropped = ledger.entries_added - ledger.imbalance - ledger.trained - ledger.backlog
    return (
        f"{ledger.entries_added:,} = {ledger.trained:,} trained + {dropped} dropped + "
        f"{ledger.backlog} left (imbalance {ledger.imbalance})"
    )


if __name__ == "__main__":
    sys.exit(main())
