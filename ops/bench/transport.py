"""`dppo-redis bench transport`: what the guarantees cost.

Two producers, one consumer, packed rollouts of 82 KB, no training. The product's own code (checksum,
push with pacing; judge, verify, unpack, check every value, settle; keeper) against a bare loop of XADD,
XREADGROUP, XACK and XDEL on the same bytes, in turn, on one server. Beside rollouts per second it shows
the computing time of all processes, which other work on the machine disturbs less.
"""

import argparse
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from dppo_redis.environments.child import spaces_of
from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.pacing import FleetPacing
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import LearnerStatus
from dppo_redis.protocol.rollout import RolloutHeader
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, connect
from dppo_redis.store.keys import GROUP, RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer, RolloutProducer
from learner.build import build_ppo
from learner.intake.batch_rule import ElasticBatch
from learner.intake.intake import Intake
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import make_leadership
from learner.malloc import keep_freed_memory
from ops.bench.hostile import configuration, make_rollout
from ops.fleet.broker import embedded

ROLLOUT_STEPS = 293  # of 8 environments: 82 KB
ROLLOUTS = 6000
BATCH = 25
PRODUCERS = 2
ROUNDS = 5
_HIGH = 4 * BATCH  # backlog at which producers wait
_GO = "bench:go"
_CPU = "bench:cpu"  # seconds of the producers


def _plan() -> RunPlan:
    config = configuration(ROLLOUT_STEPS)
    return plan(config, spaces_of(config), serial=False)


def produce_bare(client: Client, key: str) -> None:
    """Push the same bytes again and again."""
    payload = encode_rollout(make_rollout(_plan().description.spec))
    with _timed(client):
        for _ in range(ROLLOUTS // PRODUCERS):
            client.xadd(key, {"payload": payload})


def produce(client: Client, keys: RunKeys) -> None:
    """Push as an actor does, sampling left out."""
    description = _plan().description
    spec, boot = description.spec, secrets.token_hex(8)
    rollout = make_rollout(spec)
    payload = encode_rollout(rollout)
    producer = RolloutProducer(client, keys, StopRequest())
    with _timed(client):
        snapshot = producer.read_pacing()
        for seq in range(1, ROLLOUTS // PRODUCERS + 1):
            while snapshot.backlog >= snapshot.backlog_high:
                time.sleep(0.004)
                snapshot = producer.read_pacing()
            weights = snapshot.weights
            assert weights is not None
            header = RolloutHeader(
                actor=0, boot=boot, seq=seq, epoch=weights.epoch, version=weights.version, update=0,
                steps=rollout.steps, crc=checksum(payload), spec=description.digest,
            )  # fmt: skip
            snapshot = producer.push(header, payload) or producer.read_pacing()


@contextmanager
def _timed(client: Client) -> Iterator[None]:
    """Begin when all are ready; tell how much computing time it took."""
    client.incr("bench:ready")
    while not client.exists(_GO):
        time.sleep(0.001)
    began = time.process_time()
    yield
    client.incrbyfloat(_CPU, time.process_time() - began)


def consume_bare(client: Client, key: str) -> "Cost":
    """What all of them took."""
    client.xgroup_create(key, GROUP, id="0", mkstream=True)
    with producers(client, "bare") as cost:
        taken = 0
        while taken < ROLLOUTS:
            reply = cast(list[Any], client.xreadgroup(GROUP, "bench", {key: ">"}, count=BATCH, block=500))
            ids = [entry_id for entry_id, _ in reply[0][1]] if reply else []
            if ids:
                pipeline = client.pipeline(transaction=False)
                pipeline.xack(key, GROUP, *ids)
                pipeline.xdel(key, *ids)
                pipeline.execute()
            taken += len(ids)
    return cost


def consume(client: Client, keys: RunKeys) -> "Cost":
    """What all of them took; the learner's own parts, training left out."""
    planned, stop = _plan(), StopRequest()
    description, rows = planned.description, planned.derived.rollout_rows
    leadership = make_leadership(client, keys, description, "bench", stop)
    leadership.lease.acquire(0, 0)
    leadership.publisher.heal()
    leadership.bookkeeper.restore_stream()
    leadership.publisher.publish(build_ppo(planned.config, description, 1).acting_arrays(), 0, 0, 0)
    consumer = RolloutConsumer(client, keys, leadership.bookkeeper.restore_stream)
    rule = ElasticBatch(BATCH * rows, rows)
    intake = Intake(consumer, description.spec, leadership.bookkeeper.settle, lambda *_: None, rule, 4)
    keeper_client = connect(_url_of(client), "bench-keeper")
    report = from_fields(LearnerStatus, {})
    pacing = FleetPacing(PRODUCERS, _HIGH // 2, max_staleness=4, publish_every=1)
    keeper = Keeper(leadership, Registry(keeper_client, keys), lambda: report, pacing)
    keeper.start()
    try:
        with producers(client, "ours") as cost:
            taken = 0
            while taken < ROLLOUTS:
                keeper.check()
                batch = intake.poll(0, lambda: leadership.lease.lineage) or []
                leadership.bookkeeper.settle(
                    [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in batch]
                )
                intake.settled(batch)
                taken += len(batch)
        return cost
    finally:
        keeper.close()
        ledger = leadership.bookkeeper.ledger_audit.ledger
        assert ledger.counts["trained"] == ledger.settled == ROLLOUTS


def _url_of(client: Client) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


@dataclass
class Cost:
    """Of one rollout, in microseconds."""

    wall: float = 0.0
    cpu: float = 0.0  # of server, producers and consumer together


@contextmanager
def producers(client: Client, kind: str) -> Iterator[Cost]:
    """Two of them, started and ready; they begin inside."""
    command = [sys.executable, "-m", "ops.bench.transport", kind, _url_of(client)]
    processes = [subprocess.Popen(command) for _ in range(PRODUCERS)]
    cost = Cost()
    try:
        while int(cast(bytes, client.get("bench:ready") or 0)) < PRODUCERS:
            assert all(process.poll() is None for process in processes), "a producer has died"
            time.sleep(0.01)
        wall, own, server = time.perf_counter(), time.process_time(), _server_s(client)
        client.set(_GO, 1)
        yield cost
        cost.wall = 1e6 * (time.perf_counter() - wall) / ROLLOUTS
        seconds = time.process_time() - own + _server_s(client) - server
        for process in processes:
            process.wait(10)
        cost.cpu = 1e6 * (seconds + float(cast(bytes, client.get(_CPU)))) / ROLLOUTS
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _server_s(client: Client) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print rollouts per second of both, and the ratio."""
    argparse.ArgumentParser(prog="dppo-redis bench transport", description=__doc__).parse_args(argv)
    keep_freed_memory()  # as a learner; the bare loop gains by it, too
    with tempfile.TemporaryDirectory(prefix="dppo-") as place:
        broker = embedded(Path(place))
        server = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL)
        client = connect(broker.url, "bench")
        try:
            while not (Path(place) / "redis.sock").exists():
                time.sleep(0.01)
            _compare(client)
        finally:
            client.close()
            server.terminate()
            server.wait()
    return ExitStatus.DONE


def _compare(client: Client) -> None:
    keys, walls, cpus = RunKeys("bench"), [], []
    for _ in range(ROUNDS):
        client.flushall()
        bare = consume_bare(client, "bench:rollouts")
        client.flushall()
        ours = consume(client, keys)
        walls.append(bare.wall / ours.wall)
        cpus.append(bare.cpu / ours.cpu)
        print(
            f"bare {1e6 / bare.wall:6.0f}/s, {bare.cpu:4.0f} us of CPU each   with the guarantees "
            f"{1e6 / ours.wall:6.0f}/s, {ours.cpu:4.0f} us   ratio {walls[-1]:.2f}, of CPU {cpus[-1]:.2f}",
            flush=True,
        )
    print(f"median ratio {median(walls):.2f}, of CPU {median(cpus):.2f}")


def _produce(kind: str, url: str) -> None:
    """One of the producers, in a process of its own."""
    connection = connect(url, "bench-producer")
    if kind == "bare":
        produce_bare(connection, "bench:rollouts")
    else:
        produce(connection, RunKeys("bench"))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _produce(*sys.argv[1:])
    else:
        sys.exit(main())
