"""Connections, and which errors are waited out."""

import ssl
from typing import Any

import pytest
import redis
from redis import exceptions

from dppo_redis.errors import ConfigurationError, UnavailableError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import (
    SOCKET_TIMEOUT_S,
    RetryLoop,
    TransientError,
    backoff,
    classify,
    connect,
    translated,
)


def connected_with(url: str) -> dict[str, object]:
    """The options of the connections that `url` leads to; nothing is sent."""
    return dict(connect(url, "test").connection_pool.connection_kwargs)


class TestConnect:
    @pytest.mark.parametrize(
        "options",
        [
            "decode_responses=yes",
            "protocol=3",
            "retry_on_timeout=yes",
        ],
    )
    def test_no_url_changes_what_the_product_relies_on(self, options: str) -> None:
        found = connected_with(f"redis://here?{options}")
        expected = {
            "decode_responses": False,
            "protocol": 2,
            "socket_timeout": SOCKET_TIMEOUT_S,
        }
        assert {name: found[name] for name in expected} == expected

    @pytest.mark.parametrize("options", ["", "?retry_on_timeout=yes"])
    def test_no_command_is_repeated_behind_our_back(self, options: str) -> None:
        connection: Any = connect(f"redis://here{options}", "test").connection_pool.make_connection()
        assert connection.retry.get_retries() == 0


TRANSIENT: list[redis.RedisError] = [
    redis.ConnectionError("Error 111 connecting to here:6379. Connection refused."),
    redis.ConnectionError("Error -2 connecting to here:6379. Name or service not known."),
    redis.TimeoutError("Timeout reading from socket"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    exceptions.ReadOnlyError("You can't write against a read only replica."),
    exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    exceptions.MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
    exceptions.ClusterDownError("The cluster is down"),
    exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
    exceptions.NoScriptError("No matching script. Please use EVAL."),
    exceptions.MaxConnectionsError("Too many connections"),
    redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
    redis.ResponseError("UNBLOCKED force unblock from blocking operation"),
    redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
    redis.ResponseError("BUSY Redis is busy running a script."),
    redis.ResponseError("Command # 1 (XLEN key) of pipeline caused error: BUSY Redis is busy"),
    redis.ResponseError("Command # 2 (SET key) of pipeline caused error: MISCONF Redis is configured"),
]

FATAL: list[redis.RedisError] = [
    redis.AuthenticationError("invalid username-password pair or user is disabled."),
    exceptions.AuthenticationWrongNumberOfArgsError("wrong number of arguments for 'auth' command"),
    exceptions.AuthorizationError("DENIED Redis is running in protected mode"),
    exceptions.NoPermissionError("this user has no permissions to run the 'xadd' command"),
    exceptions.MovedError("1234 127.0.0.1:7001"),
    redis.ResponseError("NOAUTH Authentication required."),
    redis.ResponseError("WRONGPASS invalid username-password pair"),
    redis.ResponseError("CROSSSLOT Keys in request don't hash to the same slot"),
    redis.ResponseError("unknown command 'XAUTOCLAIM'"),
    redis.DataError("Invalid input of type: 'NoneType'"),
]


class TestClassify:
    @pytest.mark.parametrize("error", TRANSIENT, ids=str)
    def test_errors_that_pass_are_waited_out(self, error: redis.RedisError) -> None:
        assert isinstance(classify(error), TransientError)

    @pytest.mark.parametrize("error", FATAL, ids=str)
    def test_errors_that_need_a_human_are_not_waited_out(self, error: redis.RedisError) -> None:
        assert isinstance(classify(error), ConfigurationError)

    def test_a_certificate_that_is_not_trusted_needs_a_human(self) -> None:
        error = redis.ConnectionError("Error 1 connecting to here:6379.")
        error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
        assert isinstance(classify(error), ConfigurationError)
        assert "certificate" in str(classify(error))

    def test_the_cause_is_kept(self) -> None:
        cause = redis.TimeoutError("Timeout reading from socket")
        with pytest.raises(TransientError) as caught, translated():
            raise cause
        assert caught.value.__cause__ is cause

    def test_other_errors_pass_through(self) -> None:
        with pytest.raises(KeyError), translated():
            raise KeyError("mine")


class TestPatience:
    def test_an_attempt_is_repeated_until_it_succeeds(self) -> None:
        attempts = iter([redis.TimeoutError("no"), redis.TimeoutError("no"), None])

        def attempt() -> str:
            error = next(attempts)
            if error is not None:
                raise error
            return "done"

        assert RetryLoop(StopRequest()).call("try", attempt) == "done"

    def test_errors_that_need_a_human_are_not_retried(self) -> None:
        attempts = []

        def attempt() -> None:
            attempts.append(1)
            raise exceptions.NoPermissionError("this user has no permissions to run the 'xadd' command")

        with pytest.raises(ConfigurationError, match="xadd"):
            RetryLoop(StopRequest()).call("try", attempt)
        assert len(attempts) == 1

    def test_a_deadline_already_past_allows_one_attempt(self) -> None:
        def attempt() -> None:
            raise redis.TimeoutError("no")

        with pytest.raises(UnavailableError, match="cannot try"):
            RetryLoop(StopRequest(), deadline_s=0.0).call("try", attempt)

    def test_pauses_grow_to_a_second_and_differ_between_processes(self) -> None:
        one, other = backoff(), backoff()
        mine = [next(one) for _ in range(20)]
        assert mine != [next(other) for _ in range(20)]
        assert mine[0] <= 0.05
        assert all(0.5 <= pause <= 1.0 for pause in mine[6:])
