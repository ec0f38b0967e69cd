"""A Redis server of a benchmark's own, started as `train` starts it, in a temporary directory."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dppo_redis.errors import UnavailableError
from dppo_redis.store.client import Client, connect
from ops.fleet.broker import embedded

_START_S = 20.0


@contextmanager
def own_server() -> Iterator[tuple[Client, str]]:
    """A client of a new server, and the server's URL. Both end with the context, or with the process.

    Raises:
        UnavailableError: the server does not start.
    """
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as place:
        broker = embedded(Path(place))
        command = [sys.executable, "-m", "ops.fleet.run_tied", *broker.command]
        # Ctrl-C in a terminal reaches a whole process group: the server has to end last.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline = time.monotonic() + _START_S
            while not broker.socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise UnavailableError(f"{broker.command[0]} does not start")
                time.sleep(0.01)
            client = connect(broker.url, "bench")
            try:
                yield client, broker.url
            finally:
                client.close()
        finally:
            process.terminate()
            process.wait()


def server_cpu_s(client: Client) -> float:
    """Seconds of computing time that the server has used."""
    used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])
