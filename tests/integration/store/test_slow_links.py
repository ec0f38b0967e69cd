"""Slow links: a timeout measures progress, so that a slow push is not sent twice."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, TransientError, connect, translated
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import RolloutProducer
from tests.certificates import make_certificates, needs_tls, tls_server
from tests.conftest import RedisServer, opened, wait_until
from tests.e2e.support import free_port
from tests.factories import make_header
from tests.integration.learner_side import in_background, lead
from tests.slow_link import SlowLink

RATE = 200_000.0  # bytes/s
SLOWER = 100_000.0
LARGE = bytes(600_000)  # takes three times the timeout
TIMEOUT = "socket_timeout=1"


@pytest.fixture(params=["tcp", "unix"])
def slow_url(request: pytest.FixtureRequest, private_server: RedisServer, tmp_path: Path) -> Iterator[str]:
    socket = private_server.url.removeprefix("unix://")
    path = str(tmp_path / "slow.sock") if request.param == "unix" else None
    with SlowLink(socket, RATE, path=path) as link:
        yield f"unix://{path}?{TIMEOUT}" if path else f"redis://127.0.0.1:{link.port}?{TIMEOUT}"


def push(url: str, keys: RunKeys, stop: StopRequest) -> RolloutProducer:
    """Push a large rollout, and wait until it was taken."""
    with opened(url, "actor") as client:
        producer = RolloutProducer(client, keys, stop)
        snapshot = producer.push(make_header(), LARGE)
    assert snapshot is not None
    assert snapshot.backlog == 1 + producer.ambiguous  # what was given up arrives all the same: a duplicate
    return producer


class TestSlowLinks:
    def test_a_rollout_that_takes_longer_than_the_timeout_is_sent_once(
        self, slow_url: str, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(private_client, keys, stop)
        assert push(slow_url, keys, stop).ambiguous == 0

    def test_a_large_reply_takes_as_long_as_it_takes(self, slow_url: str, private_client: Client) -> None:
        private_client.set("large", LARGE)
        with opened(slow_url) as client:
            assert client.get("large") == LARGE

    @pytest.mark.slow
    def test_a_push_waits_for_bytes_in_a_tunnel_and_the_next_push_trusts_the_measured_rate(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        """The tunnel accepts all bytes at once, so that neither socket nor kernel shows the progress."""
        lead(private_client, keys, stop)
        with (
            SlowLink(private_server.url.removeprefix("unix://"), SLOWER, swallows=True) as link,
            opened(f"redis://127.0.0.1:{link.port}?{TIMEOUT}", "actor") as client,
        ):
            producer = RolloutProducer(client, keys, stop)
            producer.push(make_header(seq=1), LARGE)
            before = producer.ambiguous
            assert before <= 2  # each attempt has four times as long
            producer.push(make_header(seq=2), LARGE)
        assert producer.ambiguous == before

    def test_a_server_that_stands_still_is_given_up_soon(self, private_server: RedisServer) -> None:
        with opened(f"{private_server.url}?{TIMEOUT}") as client:
            client.ping()
            private_server.freeze()
            began = time.monotonic()
            with pytest.raises(TransientError, match="Timeout"), translated():
                client.set("large", LARGE)
            taken_s = time.monotonic() - began
            private_server.thaw()
        assert 1 <= taken_s < 8

    @needs_tls
    def test_a_link_with_tls_may_be_slow_too(self, tmp_path: Path, keys: RunKeys, stop: StopRequest) -> None:
        certificates, port = make_certificates(tmp_path), free_port()
        server = RedisServer(tls_server(), *certificates.server_arguments(port, mutual=False))
        try:
            server.start()
            with opened(server.url) as client, SlowLink(("127.0.0.1", port), RATE) as link:
                lead(client, keys, stop)
                url = f"rediss://127.0.0.1:{link.port}?{certificates.trust}&{TIMEOUT}"
                assert push(url, keys, stop).ambiguous == 0
        finally:
            server.close()

    def test_a_stop_ends_a_push_that_takes_long(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(private_client, keys, stop)
        with (
            SlowLink(private_server.url.removeprefix("unix://"), 10_000.0) as link,
            opened(f"redis://127.0.0.1:{link.port}", "actor") as client,
        ):
            producer = RolloutProducer(client, keys, stop)
            with in_background(lambda: producer.push(make_header(), LARGE), stop) as pushing:
                wait_until(lambda: link.passed > 10_000, 20, "it is on its way, and no longer the greeting")
                stop.request()
                producer.hang_up()
                assert pushing.exception(10) is not None


class TestTimeouts:
    @pytest.mark.parametrize("name", ["socket_timeout", "socket_connect_timeout"])
    def test_the_url_says_how_long(self, name: str) -> None:
        assert connect(f"redis://here?{name}=20", "test").connection_pool.connection_kwargs[name] == 20.0

    @pytest.mark.parametrize("seconds", ["0.2", "-1", "nan", "inf"])
    def test_a_timeout_shorter_than_a_blocking_read_is_refused_by_name(self, seconds: str) -> None:
        with pytest.raises(ConfigurationError, match="socket_timeout"):
            connect(f"redis://here?socket_timeout={seconds}", "test")
