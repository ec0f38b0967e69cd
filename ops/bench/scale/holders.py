"""Processes that hold a run's weights as actors do, and sample nothing.

`python -m ops.bench.scale.holders ORDER` forks them once it has imported everything, so that 64 of them start
in a second. Each looks at the run as an actor does that waits for room, fetches what is new, and builds the
policy.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from dppo_redis.errors import ExitStatus
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.service.shutdown import StopRequest, kill_with_parent
from dppo_redis.store.client import RetryLoop, connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.sharing.shared_weights import SharedWeights
from dppo_redis.store.weight_store import WeightStore
from workers.join import wait_for_description

ALONE, SHARED = KINDS = ("each fetches", "one for all")
KIND, HELD = "bench:kind", "bench:held"  # keys
_PAUSE_S = 0.05  # the longest mean pause of an actor that waits
_JITTER = random.Random()


@dataclass(frozen=True)
class HoldOrder:
    """What the holders are told."""

    url: str
    run: str
    count: int
    parent: int  # they end when that process does


@dataclass(frozen=True)
class Held:
    """What one holder says when it has new weights."""

    version: int
    at: float  # monotonic
    cpu_s: float  # computing time since it saw them


def hold(order: HoldOrder, stop: StopRequest) -> None:
    """Hold the newest weights until the run ends."""
    client, keys, retry = connect(order.url, "bench-holder"), RunKeys(order.run), RetryLoop(stop)
    description = wait_for_description(RunStore(client, keys), retry, stop)
    if description is None:
        return
    producer, alone = RolloutProducer(client, keys, stop), WeightStore(client, keys)
    shared = SharedWeights(alone, f"{order.url} {order.run}", stop)
    policy = None
    while not stop.requested:
        snapshot = retry.call("read the run's pacing", producer.read_pacing)
        if snapshot.state == STOP:
            break
        if snapshot.weights is None or (policy and snapshot.weights == policy.weights.id):
            stop.sleep(_JITTER.uniform(0.5, 1.5) * _PAUSE_S)
            continue
        kind = cast(bytes | None, client.get(KIND)) or ALONE.encode()
        began = time.process_time()
        weights = shared.fetch() if kind.decode() == SHARED else alone.fetch()
        if weights is None:
            continue
        policy = ActingPolicy(weights, description.spec)
        held = Held(weights.version, time.monotonic(), time.process_time() - began)
        client.rpush(HELD, json.dumps(vars(held)))
    shared.close()
    client.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Fork the holders, and end with them."""
    order = HoldOrder(**json.loads((sys.argv[1:] if argv is None else list(argv))[0]))
    kill_with_parent(order.parent)
    stop, own, children = StopRequest().install(), os.getpid(), []
    for _ in range(order.count):
        child = os.fork()
        if child == 0:
            kill_with_parent(own)
            _JITTER.seed()
            hold(order, stop)
            os._exit(0)
        children.append(child)
    failed = 0
    for child in children:
        while True:
            if stop.requested:
                os.kill(child, signal.SIGTERM)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                failed += status != 0
                break
            stop.sleep(_PAUSE_S) if not stop.requested else time.sleep(_PAUSE_S)
    return ExitStatus.FAILED if failed else ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
