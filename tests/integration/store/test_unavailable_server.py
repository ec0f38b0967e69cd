"""Waiting for a server that will be usable again, and not for one that needs a human."""

import time

import pytest

from dppo_redis.errors import ConfigurationError, DppoError, StoppedError, UnavailableError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop, TransientError, translated
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import RolloutConsumer, RolloutProducer, ensure_group
from ops.fleet.broker import check_server
from tests.conftest import RedisServer, opened, wait_until
from tests.e2e.support import free_port
from tests.factories import make_header
from tests.integration.learner_side import in_background, lead, publish
from tests.integration.looking import blocked, version_of


class TestUnreachableServer:
    def test_a_service_waits_until_the_server_is_back(
        self,
        private_server: RedisServer,
        private_client: Client,
        stop: StopRequest,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        private_server.kill()
        with in_background(lambda: RetryLoop(stop).call("ping", private_client.ping), stop) as waiting:
            wait_until(lambda: waiting.done() or "waiting to ping" in caplog.text, 5, "an attempt fails")
            private_server.start()
            assert waiting.result(5)

    def test_a_command_gives_up_after_its_deadline_and_names_its_purpose(
        self, private_server: RedisServer, private_client: Client, stop: StopRequest
    ) -> None:
        private_server.kill()
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="cannot look around"):
            RetryLoop(stop, deadline_s=0.5).call("look around", private_client.ping)
        assert time.monotonic() - began < 1

    def test_waiting_ends_when_a_stop_is_asked_for(
        self, private_server: RedisServer, private_client: Client, stop: StopRequest
    ) -> None:
        private_server.kill()
        with in_background(lambda: RetryLoop(stop).call("ping", private_client.ping), stop) as waiting:
            stop.request()
            assert isinstance(waiting.exception(2), StoppedError)

    def test_waiting_costs_next_to_no_computing_time(
        self, private_server: RedisServer, private_client: Client, stop: StopRequest
    ) -> None:
        private_server.kill()
        before_s = time.process_time()
        with pytest.raises(UnavailableError):
            RetryLoop(stop, deadline_s=2).call("ping", private_client.ping)
        assert time.process_time() - before_s < 0.5


@pytest.fixture
def replica(private_client: Client, keys: RunKeys, stop: StopRequest) -> Client:
    """A server that was demoted while a learner led: it follows a master that is not there."""
    lead(private_client, keys, stop)
    private_client.replicaof("127.0.0.1", "1")
    return private_client


class TestFailingOver:
    def test_a_push_is_repeated_until_the_server_leads_again(
        self, replica: Client, keys: RunKeys, stop: StopRequest, caplog: pytest.LogCaptureFixture
    ) -> None:
        producer = RolloutProducer(replica, keys, stop)
        with in_background(lambda: producer.push(make_header(), b"x"), stop) as pushing:
            wait_until(lambda: pushing.done() or "waiting to push" in caplog.text, 5, "it is refused")
            replica.replicaof("NO", "ONE")
            snapshot = pushing.result(5)
        assert snapshot is not None
        assert snapshot.backlog == 1

    def test_a_read_is_repeated_while_the_server_serves_no_old_data(
        self, replica: Client, keys: RunKeys, stop: StopRequest, caplog: pytest.LogCaptureFixture
    ) -> None:
        replica.config_set("replica-serve-stale-data", "no")
        producer = RolloutProducer(replica, keys, stop)
        with in_background(lambda: RetryLoop(stop).call("look", producer.read_pacing), stop) as looking:
            wait_until(lambda: looking.done() or "waiting to look" in caplog.text, 5, "it is refused")
            replica.replicaof("NO", "ONE")
            assert looking.result(5).backlog == 0

    def test_a_learner_publishes_once_the_server_leads_again(
        self, private_client: Client, keys: RunKeys, stop: StopRequest, caplog: pytest.LogCaptureFixture
    ) -> None:
        leadership = lead(private_client, keys, stop)
        private_client.replicaof("127.0.0.1", "1")
        with in_background(lambda: publish(leadership, update=1), stop) as publishing:
            wait_until(lambda: publishing.done() or "waiting to publish" in caplog.text, 5, "it is refused")
            private_client.replicaof("NO", "ONE")
            publishing.result(5)
        assert version_of(private_client, keys) == 2

    def test_a_client_disconnects_from_a_demoted_server_because_its_address_may_lead_elsewhere(
        self, private_client: Client, stop: StopRequest
    ) -> None:
        port = free_port()
        private_client.config_set("port", port)
        with opened(f"redis://127.0.0.1:{port}", "writer") as client:
            before = client.client_id()
            private_client.replicaof("127.0.0.1", "1")
            with pytest.raises(TransientError, match="does not lead"), translated():
                client.set("key", "value")
            private_client.replicaof("NO", "ONE")
            assert RetryLoop(stop).call("write", lambda: client.set("key", "value"))
            assert client.client_id() != before

    def test_a_blocked_reader_survives_a_demotion(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        with opened(private_server.url, "reader") as client:
            ensure_group(client, keys)
            consumer = RolloutConsumer(client, keys, lambda: None)
            list(consumer.read(1, 1))
            with in_background(lambda: list(consumer.read(1, 500)), stop) as reading:
                wait_until(lambda: blocked(private_client) == 1, 5, "the reader waits")
                private_client.replicaof("127.0.0.1", "1")
                assert reading.result(5) == []

    def test_a_service_waits_while_a_script_blocks_the_server(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        private_client.config_set("busy-reply-threshold", 1)
        producer = RolloutProducer(private_client, keys, stop)
        producer.read_pacing()  # keeps the connection that it took
        private_client.ping()  # for the kill: nobody can introduce himself to a busy server
        with (
            opened(private_server.url, "somebody") as client,
            in_background(lambda: client.eval("while true do end", 0), stop) as running,
        ):
            wait_until(lambda: error_of_read(producer) is not None, 5, "the server is busy")
            error = error_of_read(producer)
            private_client.script_kill()
            assert running.exception(5) is not None
        assert isinstance(error, TransientError)

    # Known failure KF-RED-06.
    def test_a_server_that_loads_its_data_is_waited_for(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(private_client, keys, stop)
        for number in range(10):
            private_client.set(f"large-{number}", bytes(100_000))
        private_client.save()
        private_server.kill()
        slowly = ("--key-load-delay", "200000", "--loading-process-events-interval-bytes", "1024")
        private_server.start_at_once(*slowly)
        producer = RolloutProducer(private_client, keys, stop)
        wait_until(lambda: "loading" in str(error_of_read(producer)).lower(), 5, "it loads")
        with in_background(lambda: producer.push(make_header(), b"x"), stop) as pushing:
            snapshot = pushing.result(20)
        assert snapshot is not None
        assert snapshot.backlog == 1

    def test_a_server_that_cannot_save_is_waited_for(
        self, private_server: RedisServer, private_client: Client
    ) -> None:
        (private_server.directory / "dump.rdb").mkdir()  # nothing can be saved over it
        private_client.config_set("save", "3600 1")
        private_client.bgsave()
        wait_until(
            lambda: private_client.info("persistence")["rdb_last_bgsave_status"] == "err", 5, "the save fails"
        )
        with pytest.raises(TransientError, match="MISCONF"), translated():
            private_client.set("key", "value")


def error_of_read(producer: RolloutProducer) -> DppoError | None:
    """The error of a read of Redis; None if there is none."""
    try:
        with translated():
            producer.read_pacing()
    except DppoError as error:
        return error
    return None


class TestMisconfigured:
    def test_a_missing_password_is_not_waited_for(
        self, private_server: RedisServer, private_client: Client, stop: StopRequest
    ) -> None:
        private_client.config_set("requirepass", "secret")
        with opened(private_server.url) as client, pytest.raises(ConfigurationError, match="password"):
            RetryLoop(stop).call("ping", client.ping)

    def test_a_wrong_password_is_not_waited_for(
        self, private_server: RedisServer, private_client: Client, stop: StopRequest
    ) -> None:
        private_client.config_set("requirepass", "secret")
        with (
            opened(f"{private_server.url}?password=wrong") as client,
            pytest.raises(ConfigurationError, match="password"),
        ):
            RetryLoop(stop).call("ping", client.ping)

    def test_a_missing_right_is_named(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        ensure_group(private_client, keys)
        private_client.acl_setuser(
            "actor", enabled=True, passwords="+pw", commands=["+client", "+ping"], keys=["*"]
        )
        with (
            opened(f"{private_server.url}?username=actor&password=pw") as client,
            pytest.raises(ConfigurationError, match="xadd"),
        ):
            RolloutProducer(client, keys, stop).push(make_header(), b"x")

    def test_a_password_of_any_characters_opens_the_server(
        self, private_server: RedisServer, private_client: Client
    ) -> None:
        private_client.config_set("requirepass", "p/w#1@%&+?=: ")
        url = f"{private_server.url}?password=p%2Fw%231%40%25%26%2B%3F%3D%3A%20"
        with opened(url) as client:
            assert client.ping()

    def test_an_address_that_is_no_redis_server_is_refused_as_such(self, stop: StopRequest) -> None:
        with (
            opened("unix:///nowhere/redis.sock") as client,
            pytest.raises(UnavailableError, match=r"redis\.sock"),
        ):
            RetryLoop(stop, deadline_s=0.2).call("ping", client.ping)


class TestEvictionWarning:
    def test_a_server_started_as_ours_needs_no_warning(self, client: Client) -> None:
        assert check_server(client) == []

    def test_an_evicting_policy_is_warned_of(self, private_client: Client) -> None:
        private_client.config_set("maxmemory-policy", "allkeys-lru")
        (warning,) = check_server(private_client)
        assert "allkeys-lru" in warning
        assert "noeviction" in warning
