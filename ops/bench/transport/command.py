"""`dppo-redis bench transport`: what the guarantees cost.

Two producers, one consumer, no training. The product's own code (checksum, push with pacing; judge, verify,
unpack, check every value, settle; keeper) against a bare loop of XADD, XREADGROUP, XACK and XDEL on the same
bytes, in turn, on one server that persists nothing. `packed` also checks and packs each rollout before it is
sent, as an actor does. multiprocessing.Queue carries the same arrays without Redis and without any guarantee.
Beside rollouts per second stands the computing time of all processes, which other work on the machine
disturbs less.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.wire import encode_rollout
from learner.malloc import keep_freed_memory
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import table
from ops.bench.server import own_server
from ops.bench.transport.cost import Cost
from ops.bench.transport.loads import LOADS, Load, frames_per_step, make_rollout
from ops.bench.transport.loops import consume, consume_bare, consume_queue
from ops.bench.transport.parts import measure_parts

_MOST_REPEATS = 100
BARE, OURS, PACKED, QUEUE = "bare", "same bytes", "packed", "queue"
Samples = dict[str, list[Cost]]  # by kind; taken in turn


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables.

    Raises:
        ConfigurationError: a number is out of range.
    """
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitStatus.DONE + 128 + signal.SIGTERM))
    keep_freed_memory()  # as a learner; the bare loop gains by it, too
    loads = [LOADS[name] for name in options.loads]
    found = {load.name: _sample(load, options.repeats) for load in loads}
    with own_server() as (client, _):
        parts = {load.name: measure_parts(client, load, options.repeats) for load in loads}
    if options.json:
        print(json.dumps(_as_json(found, parts)))
    else:
        _print_tables(found, parts)
    return ExitStatus.DONE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench transport", description=__doc__)
    parser.add_argument("loads", nargs="*", default=list(LOADS), help=f"which of {', '.join(LOADS)}")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each kind")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    options = parser.parse_args(argv)
    for name in options.loads:
        if name not in LOADS:
            raise ConfigurationError(f"no load {name!r}; there are: {', '.join(LOADS)}")
    if not 1 <= options.repeats <= _MOST_REPEATS:
        raise ConfigurationError(f"repeats: from 1 to {_MOST_REPEATS} (got {options.repeats})")
    return options


def _sample(load: Load, repeats: int) -> Samples:
    samples: Samples = {kind: [] for kind in (BARE, OURS, PACKED, QUEUE)}
    with own_server() as (client, _):
        for _ in range(repeats):
            client.flushall()
            samples[BARE].append(consume_bare(client, load))
            for kind in (OURS, PACKED):
                client.flushall()
                samples[kind].append(consume(client, load, kind))
            client.flushall()
            samples[QUEUE].append(consume_queue(load))
    return samples


def _ratios(samples: Samples, kind: str) -> list[float]:
    """Rate by the bare loop's, of neighbours."""
    return [bare.wall / own.wall for bare, own in zip(samples[BARE], samples[kind], strict=True)]


def _cpu_ratios(samples: Samples, kind: str) -> list[float]:
    return [bare.cpu / own.cpu for bare, own in zip(samples[BARE], samples[kind], strict=True)]


def _payload(name: str) -> tuple[int, float]:
    """Size of a load's rollout in bytes, and in observations a step."""
    spec = LOADS[name].planned().description.spec
    payload = encode_rollout(make_rollout(spec))
    return len(payload), frames_per_step(payload, spec)


def _as_json(found: dict[str, Samples], parts: dict[str, dict[str, float]]) -> dict[str, Any]:
    def each(value: Any) -> dict[str, Any]:
        return {name: value(samples) for name, samples in found.items()}

    kinds = (OURS, PACKED, QUEUE)
    return {
        "ratio": each(lambda s: round(median(_ratios(s, OURS)), 3)),
        "spread": each(lambda s: [round(min(_ratios(s, OURS)), 3), round(max(_ratios(s, OURS)), 3)]),
        "ratios": each(lambda s: {kind: round(median(_ratios(s, kind)), 3) for kind in kinds}),
        "cpu_ratios": each(lambda s: {kind: round(median(_cpu_ratios(s, kind)), 3) for kind in kinds}),
        "samples": each(
            lambda s: {kind: [round(1e6 / c.wall, 1) for c in costs] for kind, costs in s.items()}
        ),
        "cpu_us": each(lambda s: {kind: [round(c.cpu, 1) for c in costs] for kind, costs in s.items()}),
        "cores": cores(),
        "unit": "rollouts/s",
        "payload_bytes": {name: _payload(name)[0] for name in found},
        "observations_per_step": {name: round(_payload(name)[1], 4) for name in found},
        "parts_us": {name: {part: round(us, 2) for part, us in of.items()} for name, of in parts.items()},
    }


def _print_tables(found: dict[str, Samples], parts: dict[str, dict[str, float]]) -> None:
    for name, samples in found.items():
        size, frames = _payload(name)
        print(f"{name}: {size:,} bytes a rollout, {frames:.3f} observations a step on the wire\n")
        rows = []
        for kind, costs in samples.items():
            rate, cpu = median(1e6 / cost.wall for cost in costs), median(cost.cpu for cost in costs)
            ratios = _ratios(samples, kind)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            of_cpu = f"{median(_cpu_ratios(samples, kind)):.2f}"
            rows.append([kind, f"{rate:,.1f}", f"{cpu:,.0f}", f"{median(ratios):.2f}", spread, of_cpu])
        header = ["", "rollouts/s", "us of CPU each", "rate by the bare loop's", "spread", "of CPU time"]
        print(table(header, rows) + "\n")
    print("Computing time of the parts, microseconds a rollout:\n")
    rows = [[part, *(f"{of[part]:,.1f}" for of in parts.values())] for part in next(iter(parts.values()))]
    print(table(["part", *parts], rows))
    print(f"\n{cores()} cores")


if __name__ == "__main__":
    sys.exit(main())
