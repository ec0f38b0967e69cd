"""Services wait out recurring errors, and report them with cause, remedy and count."""

import os
from pathlib import Path

import numpy as np
import pytest

from dppo_redis.artefacts.best_policy import BestPolicy
from dppo_redis.errors import UnavailableError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_store import RunStore
from dppo_redis.store.weight_store import WeightStore
from learner.leadership.leadership import Leadership
from ops.screens.evaluation_summary import describe_all
from tests.certificates import make_certificates, needs_tls, tls_server
from tests.conftest import RedisServer, opened, wait_until
from tests.e2e.support import free_port
from tests.factories import make_description
from tests.integration.actor_side import SLOT, make_actor
from tests.integration.learner_side import SPEC, in_background, lead
from workers.episodes import EpisodePlayer
from workers.evaluate import Evaluator

SOON_S = 0.5


@pytest.fixture(autouse=True)
def reports_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are reported at once instead of after ten seconds."""
    monkeypatch.setattr("dppo_redis.store.error_causes._REPORTED_AFTER_S", SOON_S)


def report_while_waiting(client: Client, stop: StopRequest) -> str:
    """The reports of a service about a recurring error, while it waits."""
    retry = RetryLoop(stop)
    with in_background(lambda: retry.call("ping", client.ping), stop) as waiting:
        wait_until(lambda: waiting.done() or retry.recurrence.text != "", 10, "it is told")
        assert not waiting.done(), waiting.exception()
        return retry.recurrence.text


@needs_tls
def test_a_port_for_tls_is_recognised_and_waited_for(tmp_path: Path, stop: StopRequest) -> None:
    port = free_port()
    server = RedisServer(tls_server(), *make_certificates(tmp_path).server_arguments(port, mutual=True))
    try:
        server.start()
        with opened(f"redis://127.0.0.1:{port}") as client:
            told = report_while_waiting(client, stop)
    finally:
        server.close()
    assert f"127.0.0.1:{port} speaks TLS: use rediss://" in told
    assert "times the same" in told


def test_a_socket_that_was_swept_away_is_named(
    private_server: RedisServer, private_client: Client, stop: StopRequest
) -> None:
    private_client.connection_pool.disconnect()
    Path(private_server.url.removeprefix("unix://")).unlink()
    assert "the server's socket file is missing" in report_while_waiting(private_client, stop)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every socket: run as another user")
def test_the_socket_of_another_user_is_named(
    private_server: RedisServer, private_client: Client, stop: StopRequest
) -> None:
    private_client.connection_pool.disconnect()
    Path(private_server.url.removeprefix("unix://")).chmod(0)
    assert "another user" in report_while_waiting(private_client, stop)


def test_a_server_without_a_free_slot_is_named_and_used_once_there_is_one(
    private_server: RedisServer, private_client: Client, stop: StopRequest
) -> None:
    private_client.config_set("maxclients", 1)
    retry = RetryLoop(stop)
    with (
        opened(private_server.url, "late") as late,
        in_background(lambda: retry.call("ping", late.ping), stop) as waiting,
    ):
        wait_until(lambda: retry.recurrence.text != "", 10, "it is told")
        assert "maxclients" in retry.recurrence.text
        private_client.config_set("maxclients", 100)
        assert waiting.result(5)
    assert retry.recurrence.text == ""


def test_a_command_that_gives_up_says_cause_and_remedy(stop: StopRequest) -> None:
    with (
        opened("unix:///nowhere/redis.sock") as client,
        pytest.raises(UnavailableError, match="Remedy: start"),
    ):
        RetryLoop(stop, deadline_s=0.2).call("ping", client.ping)


@pytest.fixture
def large_weights(private_client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    """A run whose weights are larger than what the server sends."""
    leadership = lead(private_client, keys, stop)
    private_client.hset(keys.weights, mapping={"version": 2, "blob": bytes(3_000_000)})
    private_client.config_set("client-output-buffer-limit", "normal 1mb 0 0")
    return leadership


def test_an_actor_that_cannot_fetch_the_weights_says_so_in_its_report(
    large_weights: Leadership,
    private_server: RedisServer,
    private_client: Client,
    keys: RunKeys,
    stop: StopRequest,
) -> None:
    del large_weights
    with opened(private_server.url, "actor") as client:
        actor = make_actor(client, keys, stop)
        with in_background(actor.run, stop) as running:
            wait_until(lambda: running.done() or actor.stats.last_error != "", 10, "it is told")
            actor.beat(Registry(private_client, keys))  # as the watchdog does
    report = Registry(private_client, keys).living()[SLOT]
    assert "waiting to fetch weights" in report["last_error"]
    assert "client-output-buffer-limit" in report["last_error"]


def test_an_evaluator_that_cannot_fetch_the_weights_says_so_in_its_report(
    large_weights: Leadership,
    private_server: RedisServer,
    private_client: Client,
    keys: RunKeys,
    stop: StopRequest,
) -> None:
    del large_weights
    description, best = make_description(SPEC), BestPolicy(None)
    with opened(private_server.url, "evaluator") as client:
        store, weights, player = RunStore(client, keys), WeightStore(client, keys), EpisodePlayer(description)
        evaluator = Evaluator(description, store, weights, RetryLoop(stop), stop, best, player)
        with in_background(evaluator.run, stop) as running:
            own = RunStore(private_client, keys)
            wait_until(lambda: running.done() or own.evaluator().redis != "", 10, "it is told")
        report = own.evaluator()
    assert "waiting to fetch weights" in report.redis
    (warning,) = describe_all(report, None)
    assert "client-output-buffer-limit" in warning


def test_the_keeper_continues_if_it_cannot_read_the_weights_again(
    large_weights: Leadership, private_client: Client, keys: RunKeys
) -> None:
    from tests.integration.learner_side import make_keeper

    keeper = make_keeper(private_client, keys, large_weights)
    large_weights.publisher.publish(
        {"large": np.zeros(600_000, np.float32)}, update=1, trained_steps=0, settled_steps=0
    )
    for _ in range(3):
        keeper.tick()
    assert RunStore(private_client, keys).status()["version"] == "3"
