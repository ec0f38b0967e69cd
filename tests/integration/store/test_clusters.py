"""A node of a cluster and a sentinel are refused by name as servers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import RunStore
from ops.commands.status import main as status
from ops.fleet.broker import check_server, find_server
from tests.conftest import RedisServer, opened
from tests.e2e.support import free_port
from tests.integration.learner_side import leadership_of


@pytest.fixture(params=["no slots", "all slots"])
def cluster_url(request: pytest.FixtureRequest) -> Iterator[str]:
    port = free_port()
    options = ("--cluster-enabled", "yes", "--port", str(port), "--cluster-port", str(free_port()))
    server = RedisServer(find_server(), *options, "--maxmemory-policy", "noeviction")
    try:
        server.start_at_once()
        url = f"redis://127.0.0.1:{port}"
        raw = _raw(url)
        if request.param == "all slots":
            raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        raw.close()
        yield url
    finally:
        server.close()


def _raw(url: str) -> Any:
    """A plain client, once the server answers it."""

    client = redis.Redis.from_url(url, retry=Retry(ConstantBackoff(0.05), 100))
    client.ping()
    return client


def _look(client: Client, stop: StopRequest) -> object:
    return RolloutProducer(client, RunKeys("run"), stop).read_pacing()


def _lead(client: Client, stop: StopRequest) -> object:
    leadership_of(client, RunKeys("run"), stop).lease.acquire(0, 0)
    return None


DOERS: dict[str, Callable[[Client, StopRequest], object]] = {
    "train": lambda client, _: check_server(client),
    "actor": _look,
    "learner": _lead,
    "reader": lambda client, _: RunStore(client, RunKeys("run")).control(),
}


@pytest.mark.parametrize("who", DOERS)
def test_a_node_of_a_cluster_is_refused_by_name_and_with_what_to_use(
    cluster_url: str, stop: StopRequest, who: str
) -> None:
    with opened(cluster_url) as client, pytest.raises(ConfigurationError) as caught:
        RetryLoop(stop, deadline_s=10).call("try", lambda: DOERS[who](client, stop))
    assert "is a node of a Redis Cluster" in str(caught.value)
    assert "single server" in str(caught.value)
    assert "Sentinel" in str(caught.value)


def test_the_commands_refuse_it_too(cluster_url: str) -> None:
    with pytest.raises(ConfigurationError, match="Redis Cluster"):
        status(["--redis", cluster_url])


def test_a_sentinel_that_is_taken_for_a_server_is_not_waited_for(stop: StopRequest) -> None:
    port = free_port()
    server = RedisServer(find_server())
    configuration = server.directory / "sentinel.conf"
    configuration.write_text(f"port {port}\n")
    server._command = [find_server(), str(configuration), "--sentinel"]
    try:
        server.start_at_once()
        _raw(f"redis://127.0.0.1:{port}").close()
        with (
            opened(f"redis://127.0.0.1:{port}") as client,
            pytest.raises(ConfigurationError, match="a sentinel is named by sentinel://"),
        ):
            RetryLoop(stop, deadline_s=10).call("look", lambda: _look(client, stop))
    finally:
        server.close()
