"""Actors that only push: threads of a few processes, which do what they are told through Redis."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from dppo_redis.store.client import Client, connect
from ops.bench.runs import REPOSITORY

PRODUCERS = 2  # processes
PAYLOAD_BYTES = 82_000


@dataclass(frozen=True)
class Order:
    """What the actors of one process do together."""

    keys: dict[int, str]  # actor -> its stream
    count: int  # rollouts of each
    interval_s: float  # between two of an actor; 0: as fast as it can
    begin_at: float  # by the monotonic clock


@contextmanager
def producers(url: str) -> Iterator[None]:
    """The processes; they wait for orders until the end."""
    command = [sys.executable, "-m", "ops.bench.article.stream_producers", url]
    processes = [
        subprocess.Popen([*command, str(number)], cwd=REPOSITORY, start_new_session=True)
        for number in range(PRODUCERS)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(url: str, number: int) -> None:
    """Follow orders, one after another."""
    client = connect(url, "bench-producer")
    connections: dict[int, Client] = {}
    while True:
        told = cast(Any, client.blpop([f"bench:orders:{number}"], timeout=1))
        if told is None:
            continue
        values = json.loads(told[1])
        order = Order(**{**values, "keys": {int(actor): key for actor, key in values["keys"].items()}})
        for actor in order.keys:
            connections.setdefault(actor, connect(url, "bench-actor")).ping()
        threads = [
            threading.Thread(target=_push, args=(connections[actor], actor, order)) for actor in order.keys
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _push(client: Client, actor: int, order: Order) -> None:
    key, payload = order.keys[actor], bytes(PAYLOAD_BYTES)
    due = order.begin_at + order.interval_s * (0.618 * actor % 1)  # not all at the same time
    for _ in range(order.count):
        time.sleep(max(0.0, due - time.monotonic()))
        client.xadd(key, {"actor": actor, "sent": repr(time.monotonic()), "payload": payload})
        due += order.interval_s


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
