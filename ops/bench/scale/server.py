"""The server that a benchmark measures: the given one, or one of its own as `train` starts it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import INTERACTIVE_PATIENCE_S, RetryLoop, connect
from ops.bench.server import own_server


def bench_run() -> str:
    """A name for a run of a benchmark, which no other run has."""
    return f"bench-{secrets.token_hex(4)}"


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The given server, or one of our own, which ends with the block."""
    if url is not None:
        yield url
        return
    with own_server() as (_, own):
        yield own


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
