"""The server that a benchmark measures: the given one, or one of its own as `train` starts it."""

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import INTERACTIVE_PATIENCE_S, Client, RetryLoop, connect
from ops.fleet.broker import embedded

_SERVER_S = 10.0


def bench_run() -> str:
    """A name for a run of a benchmark, which no other run has."""
    return f"bench-{secrets.token_hex(4)}"


@contextmanager
def server(url: str | None, stop: StopRequest) -> Iterator[str]:
    """The given server, or one of our own as `train` starts it, which ends with the block."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as place:
        broker = embedded(Path(place))
        command = [sys.executable, "-m", "ops.fleet.run_tied", *broker.command]
        # Ctrl-C in a terminal reaches a whole process group: the server has to end last.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline = time.monotonic() + _SERVER_S
            while not broker.socket.exists() and not stop.requested:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ConfigurationError(f"{broker.command[0]} does not start")
                time.sleep(0.01)
            yield broker.url
        finally:
            process.terminate()
            process.wait()


def check_connections(url: str, needed: int, stop: StopRequest) -> None:
    """Refuse a server that allows fewer connections.

    Raises:
        ConfigurationError: with the command that raises the limit.
    """
    if stop.requested:
        return
    client = connect(url, "bench")
    retry = RetryLoop(stop, deadline_s=INTERACTIVE_PATIENCE_S)
    clients = retry.call("ask for the limit of connections", lambda: client.info("clients"))
    client.close()
    most = int(clients.get("maxclients", needed))
    if most < needed:
        raise ConfigurationError(
            f"these actors need {needed} connections, and this Redis allows {most}: raise the limit with "
            f"`redis-cli -u {url} CONFIG SET maxclients {needed}`, or measure fewer actors"
        )


def server_s(client: Client) -> float:
    """Computing time of the server so far."""
    used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])
