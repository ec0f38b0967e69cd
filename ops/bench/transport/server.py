"""One server for all samples of the benchmark, and the computing time that processes took."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from dppo_redis.store.client import Client, connect
from ops.fleet.broker import embedded

_START_LIMIT_S = 10.0


@dataclass
class Cost:
    """Of one rollout, in microseconds."""

    wall: float = 0.0
    cpu: float = 0.0  # of server, producers and consumer together


@contextmanager
def running_server() -> Iterator[Client]:
    """An embedded server in a temporary directory; at the end both are gone."""
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as place:
        broker = embedded(Path(place))
        server = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL)
        client = connect(broker.url, "bench")
        try:
            _wait(client)
            yield client
        finally:
            client.close()
            server.kill()  # it keeps nothing
            server.wait()


def _wait(client: Client) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def url_of(client: Client) -> str:
    """The URL of the embedded server."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


def server_s(client: Client) -> float:
    """Seconds of computing time that the server has taken."""
    used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])
