"""The proxy causes the faults that it is told to cause, and no others."""

import socket
import time
from collections.abc import Iterator

import pytest
import redis

from dppo_redis.store.client import Client
from tests.chaos.proxy import Proxy, Weather
from tests.conftest import RedisServer, opened, wait_until

BLOB = b"x" * 200_000


@pytest.fixture
def proxy(private_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(private_server.url.removeprefix("unix://")) as proxy:
        yield proxy


@pytest.fixture
def actor(proxy: Proxy) -> Iterator[Client]:
    with opened(proxy.url, "dppo-actor-run") as client:
        client.ping()
        yield client


@pytest.fixture
def learner(proxy: Proxy) -> Iterator[Client]:
    with opened(proxy.url, "dppo-learner-run") as client:
        client.ping()
        yield client


def seconds(client: Client) -> float:
    started = time.monotonic()
    client.ping()
    return time.monotonic() - started


def test_large_values_pass_unchanged(actor: Client) -> None:
    actor.set("key", BLOB)
    assert actor.get("key") == BLOB


def test_delay_concerns_one_role_alone(proxy: Proxy, actor: Client, learner: Client) -> None:
    proxy.set_weather(Weather("actor", delay_s=0.2))
    assert seconds(actor) >= 0.4
    assert seconds(learner) < 0.4
    proxy.set_weather(Weather())
    assert seconds(actor) < 0.4


def test_a_narrow_link_takes_as_long_as_its_bytes_need(proxy: Proxy, actor: Client) -> None:
    proxy.set_weather(Weather(bytes_per_s=400_000))
    started = time.monotonic()
    actor.set("key", BLOB)
    assert time.monotonic() - started >= len(BLOB) / 400_000


def test_bytes_sent_into_a_hole_arrive_when_it_closes_although_the_sender_has_disconnected(
    proxy: Proxy, private_client: Client
) -> None:
    proxy.set_weather(Weather(hole=True))
    with socket.create_connection(("127.0.0.1", proxy.port)) as impatient:
        impatient.sendall(b"SET key late\r\n")
        wait_until(lambda: seconds(private_client) < 1, 5, "the server answers")
        assert private_client.get("key") is None
    proxy.set_weather(Weather())
    wait_until(lambda: private_client.get("key") == b"late", 5, "the server has the value")


def test_a_reset_ends_the_connections_of_a_role(proxy: Proxy, actor: Client, learner: Client) -> None:
    before = actor.client_id(), learner.client_id()
    assert proxy.reset("actor") == 1
    after = actor.client_id(), learner.client_id()
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_lost_reply_is_that_of_a_command_that_was_applied(
    proxy: Proxy, actor: Client, learner: Client, private_client: Client
) -> None:
    proxy.lose_reply("actor", b"INCR")
    assert learner.incr("n") == 1
    with pytest.raises(redis.ConnectionError):
        actor.incr("n")
    assert private_client.get("n") == b"2"
    assert proxy.replies_lost == 1
    assert actor.incr("n") == 3


def test_a_server_that_is_down_refuses(actor: Client, private_server: RedisServer) -> None:
    private_server.kill()
    with pytest.raises(redis.ConnectionError):
        actor.ping()
    private_server.start()
    assert actor.ping()
