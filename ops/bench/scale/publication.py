"""`dppo-redis bench publication`: what a publication of large weights costs server, link, learner and actors.

Processes on this machine hold a run's weights as actors do. In turn each of them fetches a publication, and
one of them fetches it for all. A publication is over when all of them hold it.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, cast

from dppo_redis.environments.child import spaces_of
from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus, StoppedError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, TransientError, connect, translated
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import RunStore
from learner.build import build_ppo
from learner.leadership.leadership import Leadership, make_leadership
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import REPOSITORY, table
from ops.bench.scale.holders import ALONE, HELD, KIND, KINDS, SHARED, Held, HoldOrder
from ops.bench.scale.server import bench_run, check_connections, server
from ops.bench.server import server_cpu_s
from ops.fleet.machine_limits import FleetNeeds, check_limits

_DEADLINE_S = 300.0
_CONNECTIONS = 3
_POLL_S = 0.005
_MOST_MB = 60
_MOST_ACTORS = 256


@dataclass(frozen=True)
class Cost:
    """What one publication cost. Times in seconds."""

    held_by_all_s: float  # from its begin
    learner_s: float  # that it blocked the learner
    server_cpu_s: float
    sent_mb: float  # by the server
    server_mb: float  # most memory of the server meanwhile
    actors_cpu_s: float  # of all of them


class Publications:
    """The learner's side: it publishes, and waits until all hold it."""

    def __init__(self, url: str, run: str, planned: RunPlan, stop: StopRequest) -> None:
        self._stop = stop
        self._client = connect(url, "bench-learner")
        self._arrays = build_ppo(planned.config, planned.description, 1).acting_arrays()
        self._keys = RunKeys(run)
        self._leadership = _lead(self._client, self._keys, planned, stop)
        self._update = 0

    def publish(self, count: int, kind: str, processes: Sequence[subprocess.Popen[bytes]]) -> Cost:
        """Publish once; `count` holders fetch it in this way.

        Raises:
            StoppedError: a stop was requested.
        """
        client = self._client
        client.delete(HELD)
        client.set(KIND, kind)
        server, sent, began = server_cpu_s(client), _sent(client), time.monotonic()
        self._update += 1
        self._leadership.publisher.publish(self._arrays, self._update, 0, 0)
        learner_s, server_mb = time.monotonic() - began, 0.0
        while int(client.llen(HELD)) < count:
            server_mb = max(server_mb, client.info("memory")["used_memory"] / 2**20)
            if self._stop.requested:
                raise StoppedError("stopped while measuring")
            if time.monotonic() > began + _DEADLINE_S or any(p.poll() is not None for p in processes):
                raise ConfigurationError("the holders of the weights have ended, or take minutes")
            time.sleep(_POLL_S)
        held = [Held(**json.loads(text)) for text in cast(list[bytes], client.lrange(HELD, 0, -1))]
        return Cost(
            held_by_all_s=max(one.at for one in held) - began,
            learner_s=learner_s,
            server_cpu_s=server_cpu_s(client) - server,
            sent_mb=(_sent(client) - sent) / 2**20,
            server_mb=server_mb,
            actors_cpu_s=sum(one.cpu_s for one in held),
        )

    def end_run(self) -> None:
        """Ask the holders to end."""
        self._leadership.publisher.end_run("stopped", None)

    def close(self) -> None:
        """Remove what the benchmark has written."""
        with suppress(TransientError), translated():
            self._client.delete(HELD, KIND)
            RunStore(self._client, self._keys).delete()
        self._client.close()


def _lead(client: Client, keys: RunKeys, planned: RunPlan, stop: StopRequest) -> Leadership:
    leadership = make_leadership(client, keys, planned.description, "bench", stop)
    leadership.lease.acquire(0, 0)
    leadership.publisher.announce()
    leadership.bookkeeper.restore_stream()
    return leadership


def _sent(client: Client) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


def configuration(megabytes: float) -> RunConfig:
    """CartPole with two equal layers whose policy has this size."""
    width = max(1, round(math.sqrt(megabytes * 2**20 / 4)))
    return RunConfig.model_validate(
        {"env_id": "CartPole-v1", "network": {"hidden": [width, width]}, "device": "cpu"}
    )


@contextmanager
def holders(url: str, run: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process that holds the holders; it has ended after the block."""
    order = json.dumps(asdict(HoldOrder(url, run, count, os.getpid())))
    command = [sys.executable, "-m", "ops.bench.scale.holders", order]
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)  # Ctrl-C: it ends with us
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def measure(
    url: str, run: str, count: int, planned: RunPlan, repeats: int, stop: StopRequest
) -> dict[str, list[Cost]]:
    """Publications of both kinds in turn."""
    found: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    with closing(Publications(url, run, planned, stop)) as publications, holders(url, run, count) as process:
        for kind in KINDS:  # they start, and make their files, meanwhile
            publications.publish(count, kind, [process])
        for _ in range(repeats):
            for kind in KINDS:
                found[kind].append(publications.publish(count, kind, [process]))
        publications.end_run()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    options = _options(argv)
    stop = StopRequest().install()
    most = max(options.actors)
    check_limits(FleetNeeds(files=64 + _CONNECTIONS * most, tasks=64 + most))
    config = configuration(options.mb)
    found: dict[int, dict[str, list[Cost]]] = {}
    with server(options.redis) as url:
        try:
            check_connections(url, 64 + _CONNECTIONS * most, stop)
            planned = plan(config, spaces_of(config, stop), serial=False)
            for count in options.actors:
                with translated():
                    found[count] = measure(url, bench_run(), count, planned, options.repeats, stop)
        except (StoppedError, TransientError):
            if not stop.requested:
                raise
            return stop.exit_status
    print(json.dumps(_as_json(found)) if options.json else _table(found))
    return ExitStatus.DONE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench publication", description=__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 8, 64], metavar="N")
    parser.add_argument("--mb", type=float, default=16.0, help="size of the weights")
    parser.add_argument("--repeats", type=int, default=5, help="publications of each kind")
    parser.add_argument("--redis", help="URL; default: a server of its own, as `train` starts it")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    options = parser.parse_args(argv)
    for name, least, most, values in (
        ("actors", 1, _MOST_ACTORS, options.actors),
        ("mb", 0.001, _MOST_MB, [options.mb]),
        ("repeats", 1, 1000, [options.repeats]),
    ):
        for value in values:
            if not least <= value <= most:
                raise ConfigurationError(f"{name}: from {least:g} to {most:g} (got {value:g})")
    return options


def ratios(costs: dict[str, list[Cost]], name: str) -> list[float]:
    """One fetch for all by a fetch of each, of neighbours."""
    pairs = zip(costs[SHARED], costs[ALONE], strict=True)
    return [getattr(mine, name) / max(1e-9, getattr(theirs, name)) for mine, theirs in pairs]


def _as_json(found: dict[int, dict[str, list[Cost]]]) -> dict[str, Any]:
    most = ratios(found[max(found)], "held_by_all_s")
    return {
        "ratio": round(median(most), 4),
        "samples": {
            count: {kind: [round(one.held_by_all_s, 4) for one in each] for kind, each in costs.items()}
            for count, costs in found.items()
        },
        "spread": [round(min(most), 4), round(max(most), 4)],
        "cores": cores(),
        "unit": "s until all actors hold a publication; the ratio is that of one fetch for all, most actors",
        "medians": {
            count: {kind: _medians(each) for kind, each in costs.items()} for count, costs in found.items()
        },
        "ratios": {
            count: {f.name: round(median(ratios(costs, f.name)), 4) for f in fields(Cost)}
            for count, costs in found.items()
        },
    }


def _medians(costs: Sequence[Cost]) -> dict[str, float]:
    return {f.name: round(median(getattr(one, f.name) for one in costs), 4) for f in fields(Cost)}


def _table(found: dict[int, dict[str, list[Cost]]]) -> str:
    rows: list[list[object]] = []
    for count, costs in found.items():
        for kind, each in costs.items():
            values = _medians(each)
            numbers = [
                f"{values[f.name]:,.3f}" if f.name.endswith("_s") else f"{values[f.name]:,.0f}"
                for f in fields(Cost)
            ]
            rows.append([count, kind, *numbers])
        rows.append([count, "ratio", *(f"{median(ratios(costs, f.name)):.2f}" for f in fields(Cost))])
    head = [
        "actors", "", "until all hold it, s", "learner blocked, s", "server CPU, s", "sent, MB",
        "server's peak, MB", "actors' CPU, s",
    ]  # fmt: skip
    return f"{table(head, rows)}\n\nmedians; {cores()} cores"


if __name__ == "__main__":
    sys.exit(main())
