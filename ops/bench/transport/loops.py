"""Consumers of the benchmark: the bare loop, the product's own learner parts, and multiprocessing.Queue."""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any, cast

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.pacing import FleetPacing
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import LearnerStatus
from dppo_redis.protocol.rollout import ARRAY_NAMES
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, connect
from dppo_redis.store.keys import GROUP
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer
from learner.build import build_ppo
from learner.intake.batch_rule import ElasticBatch
from learner.intake.intake import Intake
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import make_leadership
from ops.bench.server import server_cpu_s
from ops.bench.transport.cost import Cost
from ops.bench.transport.loads import Load, make_rollout
from ops.bench.transport.producer import CPU, GO, KEYS, PRODUCERS, READY

_START_LIMIT_S = 120.0


def consume_bare(client: Client, load: Load) -> Cost:
    """What all processes took; every other argument of redis-py as it comes, as anyone writes it."""
    key = KEYS.rollouts
    client.xgroup_create(key, GROUP, id="0", mkstream=True)
    with _producers(client, "bare", load) as cost:
        taken = 0
        while taken < load.rollouts:
            reply = cast(
                list[Any], client.xreadgroup(GROUP, "bench", {key: ">"}, count=load.batch, block=500)
            )
            ids = [entry_id for entry_id, _ in reply[0][1]] if reply else []
            if ids:
                pipeline = client.pipeline(transaction=False)
                pipeline.xack(key, GROUP, *ids)
                pipeline.xdel(key, *ids)
                pipeline.execute()
            taken += len(ids)
    return cost


def consume(client: Client, load: Load, kind: str) -> Cost:
    """What all processes took; the learner's own parts, training left out."""
    planned, stop = load.planned(), StopRequest()
    description, rows = planned.description, planned.derived.rollout_rows
    leadership = make_leadership(client, KEYS, description, "bench", stop)
    leadership.lease.acquire(0, 0)
    leadership.publisher.heal()
    leadership.bookkeeper.restore_stream()
    leadership.publisher.publish(build_ppo(planned.config, description, 1).acting_arrays(), 0, 0, 0)
    consumer = RolloutConsumer(client, KEYS, leadership.bookkeeper.restore_stream)
    rule = ElasticBatch(load.batch * rows, rows)
    intake = Intake(consumer, description.spec, leadership.bookkeeper.settle, lambda *_: None, rule, 4)
    keeper_client = connect(url_of(client), "bench-keeper")
    report = from_fields(LearnerStatus, {})
    pacing = FleetPacing(PRODUCERS, 2 * load.batch, max_staleness=4, publish_every=1)
    keeper = Keeper(leadership, Registry(keeper_client, KEYS), lambda: report, pacing)
    keeper.start()
    try:
        with _producers(client, kind, load) as cost:
            taken = 0
            while taken < load.rollouts:
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
        keeper_client.close()
        ledger = leadership.bookkeeper.ledger_audit.ledger
        assert sys.exception() or ledger.counts["trained"] == ledger.settled == load.rollouts


@contextmanager
def _producers(client: Client, kind: str, load: Load) -> Iterator[Cost]:
    """Two of them, started and ready; they begin inside."""
    command = [sys.executable, "-m", "ops.bench.transport.producer", kind, load.name, url_of(client)]
    processes = [subprocess.Popen(command) for _ in range(PRODUCERS)]
    cost = Cost()
    try:
        while int(cast(bytes, client.get(READY) or 0)) < PRODUCERS:
            assert all(process.poll() is None for process in processes), "a producer has died"
            time.sleep(0.01)
        wall, own, server = time.perf_counter(), time.process_time(), server_cpu_s(client)
        client.set(GO, 1)
        yield cost
        cost.wall = 1e6 * (time.perf_counter() - wall) / load.rollouts
        seconds = time.process_time() - own + server_cpu_s(client) - server
        for process in processes:
            process.wait(_START_LIMIT_S)
        cost.cpu = 1e6 * (seconds + float(cast(bytes, client.get(CPU)))) / load.rollouts
    finally:
        for process in processes:
            process.kill()
            process.wait()


def consume_queue(load: Load) -> Cost:
    """What all processes took with multiprocessing.Queue: dicts of arrays, and no guarantee."""
    context = multiprocessing.get_context("spawn")
    barrier, queue, times = context.Barrier(PRODUCERS + 1), context.Queue(2 * load.batch), context.Queue()
    workers: list[BaseProcess] = [
        context.Process(target=_put, args=(load, barrier, queue, times), daemon=True)
        for _ in range(PRODUCERS)
    ]
    try:
        for worker in workers:
            worker.start()
        barrier.wait(_START_LIMIT_S)
        wall, own = time.perf_counter(), time.process_time()
        for _ in range(load.rollouts):
            queue.get(timeout=_START_LIMIT_S)
        wall = time.perf_counter() - wall
        seconds = time.process_time() - own + sum(times.get(timeout=_START_LIMIT_S) for _ in workers)
        return Cost(1e6 * wall / load.rollouts, 1e6 * seconds / load.rollouts)
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()


def _put(load: Load, barrier: Barrier, queue: Any, times: Any) -> None:
    rollout = make_rollout(load.planned().description.spec)
    arrays = {name: getattr(rollout, name) for name in ARRAY_NAMES}
    barrier.wait()
    began = time.process_time()
    for _ in range(load.rollouts // PRODUCERS):
        queue.put(arrays)
    queue.close()
    queue.join_thread()  # its thread packs the arrays
    times.put(time.process_time() - began)


def url_of(client: Client) -> str:
    """The URL of the embedded server."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"
