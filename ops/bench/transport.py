"""`python -m ops.bench.transport`: what the guarantees cost.

Two producers, one consumer, packed rollouts of 82 KB, no training. The product's own code (checksum,
push with pacing; judge, verify, unpack, check every value, settle; keeper) against a bare loop of XADD,
XREADGROUP, XACK and XDEL on the same bytes, in turn, on one server.
"""

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

from dppo_redis.keys import GROUP, RunKeys
from dppo_redis.ledger import Outcome, Settlement
from dppo_redis.pacing import derive
from dppo_redis.redis_client import Client, connect
from dppo_redis.registry import Registry
from dppo_redis.rollout import RolloutHeader
from dppo_redis.rollout_stream import RolloutConsumer, RolloutProducer
from dppo_redis.shutdown import StopRequest
from dppo_redis.wire import checksum, encode_rollout
from learner.authority import Authority
from learner.batch_rule import ElasticBatch
from learner.build import build_ppo
from learner.intake import Intake
from learner.keeper import Keeper
from ops.bench.hostile import configuration, describe, make_rollout
from ops.broker import embedded

ROLLOUT_STEPS = 293  # of 8 environments: 82 KB
ROLLOUTS = 2000
BATCH = 25
PRODUCERS = 2
ROUNDS = 5
_HIGH = 4 * BATCH  # backlog at which producers wait
_GO = "bench:go"


def produce_bare(client: Client, key: str) -> None:
    """Push the same bytes again and again."""
    payload = encode_rollout(make_rollout(describe(configuration(ROLLOUT_STEPS)).spec))
    _wait_for_go(client)
    for _ in range(ROLLOUTS // PRODUCERS):
        client.xadd(key, {"payload": payload})


def produce(client: Client, keys: RunKeys) -> None:
    """Push as an actor does, sampling left out."""
    description = describe(configuration(ROLLOUT_STEPS))
    spec, boot = description.spec, secrets.token_hex(8)
    rollout = make_rollout(spec)
    payload = encode_rollout(rollout)
    producer = RolloutProducer(client, keys, StopRequest())
    _wait_for_go(client)
    situation = producer.look()
    for seq in range(1, ROLLOUTS // PRODUCERS + 1):
        while situation.backlog >= situation.backlog_high:
            time.sleep(0.004)
            situation = producer.look()
        weights = situation.weights
        assert weights is not None
        header = RolloutHeader(
            actor=0, boot=boot, seq=seq, epoch=weights.epoch, version=weights.version, update=0,
            steps=rollout.steps, crc=checksum(payload), spec=description.digest,
        )  # fmt: skip
        situation = producer.push(header, payload) or producer.look()


def _wait_for_go(client: Client) -> None:
    client.incr("bench:ready")
    while not client.exists(_GO):
        time.sleep(0.001)


def consume_bare(client: Client, key: str) -> float:
    """Seconds for all of them."""
    client.xgroup_create(key, GROUP, id="0", mkstream=True)
    with producers(client, "bare"):
        started, taken = time.perf_counter(), 0
        while taken < ROLLOUTS:
            reply = cast(list[Any], client.xreadgroup(GROUP, "bench", {key: ">"}, count=BATCH, block=500))
            ids = [entry_id for entry_id, _ in reply[0][1]] if reply else []
            if ids:
                pipeline = client.pipeline(transaction=False)
                pipeline.xack(key, GROUP, *ids)
                pipeline.xdel(key, *ids)
                pipeline.execute()
            taken += len(ids)
        return time.perf_counter() - started


def consume(client: Client, keys: RunKeys) -> float:
    """Seconds for all of them; the learner's own parts, training left out."""
    config = configuration(ROLLOUT_STEPS)
    description, stop = describe(config), StopRequest()
    derived = derive(config, description.spec.observation, description.spec.action)
    rows = derived.rollout_rows
    authority = Authority(client, keys, description, "bench", stop)
    authority.acquire(0, 0)
    authority.heal()
    authority.restore_stream()
    authority.publish(build_ppo(config, description, 1).acting_arrays(), 0, 0, 0)
    consumer = RolloutConsumer(client, keys, authority.restore_stream)
    rule = ElasticBatch(BATCH * rows, rows)
    intake = Intake(consumer, description.spec, authority.settle, lambda *_: None, rule, 4)
    keeper_client = connect(_url_of(client), "bench-keeper")
    keeper = Keeper(authority, Registry(keeper_client, keys), dict, _HIGH // 2, 4, 1, PRODUCERS)
    keeper.start()
    try:
        with producers(client, "ours"):
            started, taken = time.perf_counter(), 0
            while taken < ROLLOUTS:
                keeper.check()
                batch = intake.poll(0, lambda: authority.lineage) or []
                authority.settle(
                    [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in batch]
                )
                intake.settled(batch)
                taken += len(batch)
            return time.perf_counter() - started
    finally:
        keeper.close()
        assert authority.books.ledger.counts["trained"] == authority.books.ledger.settled == ROLLOUTS


def _url_of(client: Client) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


@contextmanager
def producers(client: Client, kind: str) -> Iterator[None]:
    """Two of them, started and ready; they begin inside."""
    command = [sys.executable, "-m", "ops.bench.transport", kind, _url_of(client)]
    processes = [subprocess.Popen(command) for _ in range(PRODUCERS)]
    try:
        while int(cast(bytes, client.get("bench:ready") or 0)) < PRODUCERS:
            assert all(process.poll() is None for process in processes), "a producer has died"
            time.sleep(0.01)
        client.set(_GO, 1)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Print rollouts per second of both, and the ratio."""
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


def _compare(client: Client) -> None:
    keys, bare, ours = RunKeys("bench"), [], []
    for _ in range(ROUNDS):
        client.flushall()
        bare.append(ROLLOUTS / consume_bare(client, "bench:rollouts"))
        client.flushall()
        ours.append(ROLLOUTS / consume(client, keys))
        print(
            f"bare {bare[-1]:7.0f}/s   ours {ours[-1]:7.0f}/s   ratio {ours[-1] / bare[-1]:.2f}", flush=True
        )
    ratio = median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    print(f"median {median(bare):.0f}/s bare, {median(ours):.0f}/s with the guarantees: {ratio:.2f}")


if __name__ == "__main__":
    if sys.argv[1:]:
        connection = connect(sys.argv[2], "bench-producer")
        if sys.argv[1] == "bare":
            produce_bare(connection, "bench:rollouts")
        else:
            produce(connection, RunKeys("bench"))
    else:
        main()
