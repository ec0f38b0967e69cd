"""One of the benchmark's producers, in a process of its own: `python -m ops.bench.transport.producer`.

Three kinds. `bare` sends the same bytes with XADD. `same bytes` sends them as an actor does: checksum,
header, push, pacing. `packed` does all that an actor does with a sampled rollout: it checks every number and
packs it first.
"""

import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.protocol.rollout import RolloutHeader, validate
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import RolloutProducer
from ops.bench.transport.loads import LOADS, Load, make_rollout

GO = "bench:go"
READY = "bench:ready"
CPU = "bench:cpu"  # seconds of the producers
PRODUCERS = 2
KEYS = RunKeys("bench")


@contextmanager
def _timed(client: Client) -> Iterator[None]:
    """Begin when all are ready; tell how much computing time it took."""
    client.incr(READY)
    while not client.exists(GO):
        time.sleep(0.001)
    began = time.process_time()
    yield
    client.incrbyfloat(CPU, time.process_time() - began)


def produce_bare(client: Client, load: Load) -> None:
    """Push the same bytes again and again."""
    payload = encode_rollout(make_rollout(load.planned().description.spec))
    with _timed(client):
        for _ in range(load.rollouts // PRODUCERS):
            client.xadd(KEYS.rollouts, {"payload": payload})


def produce(client: Client, load: Load, *, packs: bool) -> None:
    """Push as an actor does, sampling left out."""
    description = load.planned().description
    spec, boot = description.spec, secrets.token_hex(8)
    rollout = make_rollout(spec)
    payload = encode_rollout(rollout)
    producer = RolloutProducer(client, KEYS, StopRequest())
    with _timed(client):
        snapshot = producer.read_pacing()
        for seq in range(1, load.rollouts // PRODUCERS + 1):
            while snapshot.backlog >= snapshot.backlog_high:
                time.sleep(0.004)
                snapshot = producer.read_pacing()
            weights = snapshot.weights
            assert weights is not None
            if packs:
                validate(rollout, spec)
                payload = encode_rollout(rollout)
            header = RolloutHeader(
                actor=0, boot=boot, seq=seq, epoch=weights.epoch, version=weights.version, update=0,
                steps=rollout.steps, crc=checksum(payload), spec=description.digest,
            )  # fmt: skip
            snapshot = producer.push(header, payload) or producer.read_pacing()


def main(kind: str, load: str, url: str) -> None:
    """Connect and produce."""
    client = connect(url, "bench-producer")
    if kind == "bare":
        produce_bare(client, LOADS[load])
    else:
        produce(client, LOADS[load], packs=kind == "packed")


if __name__ == "__main__":
    main(*sys.argv[1:])
