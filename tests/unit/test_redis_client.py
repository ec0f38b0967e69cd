"""Addresses, passwords, and which errors are waited out."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions

from dppo_redis.errors import ConfigurationError, UnavailableError
from dppo_redis.redis_client import (
    PASSWORD_FILE_VARIABLE,
    SOCKET_TIMEOUT_S,
    URL_VARIABLE,
    Patience,
    TransientError,
    backoff,
    classify,
    connect,
    find_url,
    has_password,
    redact,
    translated,
)
from dppo_redis.shutdown import StopRequest

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.delenv(PASSWORD_FILE_VARIABLE, raising=False)


@pytest.fixture
def password_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    monkeypatch.setenv(PASSWORD_FILE_VARIABLE, str(file))
    return file


class TestFindUrl:
    def test_the_flag_wins_over_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL_VARIABLE, "redis://elsewhere")
        assert find_url("redis://here") == "redis://here"
        assert find_url(None) == "redis://elsewhere"

    def test_without_any_the_variable_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match=URL_VARIABLE):
            find_url(None)

    @pytest.mark.parametrize("url", ["here:6379", "http://here", "redis://here:port", "redis://[here"])
    def test_a_malformed_url_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="bad Redis URL"):
            find_url(url)

    @pytest.mark.parametrize(
        "url",
        [
            f"redis://:{SECRET}/x@here:6379",
            f"redis://:{SECRET}#x@here:6379",
            f"redis://:{SECRET}?x@here:6379",
            f"redis://:{SECRET}[x@here:6379",
            f"redis://user:{SECRET}@here:port",
            f"http://user:{SECRET}@here",
        ],
        ids=["slash", "hash", "question mark", "bracket", "bad port", "bad scheme"],
    )
    def test_the_password_in_a_malformed_url_is_not_shown(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            find_url(url)
        assert SECRET not in str(caught.value)

    def test_an_option_that_no_connection_has_is_refused_at_once(self) -> None:
        with pytest.raises(ConfigurationError, match="colour"):
            find_url("redis://here?colour=blue")


class TestPasswordFile:
    @pytest.mark.usefixtures("password_file")
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("redis://here:6379/2", f"redis://:{SECRET}@here:6379/2"),
            ("rediss://actor@here", f"rediss://actor:{SECRET}@here"),
            ("redis://:old@here", f"redis://:{SECRET}@here"),
            ("unix:///run/redis.sock", f"unix:///run/redis.sock?password={SECRET}"),
            ("unix:///run/redis.sock?db=1", f"unix:///run/redis.sock?db=1&password={SECRET}"),
        ],
    )
    def test_its_content_becomes_the_password(self, url: str, expected: str) -> None:
        assert find_url(url) == expected

    @pytest.mark.usefixtures("password_file")
    def test_it_wins_over_the_password_of_a_unix_url_as_it_does_elsewhere(self) -> None:
        assert connected_with(find_url("unix:///run/redis.sock?password=old"))["password"] == SECRET

    @pytest.mark.parametrize("password", ["p/w#1@%&+?=:", "pass word", "ünïcode", "trailing space "])
    @pytest.mark.parametrize("url", ["redis://user@here:1", "unix:///run/redis.sock?username=user"])
    def test_a_password_of_any_characters_reaches_the_connection(
        self, password_file: Path, password: str, url: str
    ) -> None:
        password_file.write_text(password + "\n", encoding="utf-8")
        options = connected_with(find_url(url))
        assert (options["username"], options["password"]) == ("user", password)

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
    def test_a_file_that_others_may_read_is_refused_with_the_remedy(
        self, password_file: Path, mode: int
    ) -> None:
        password_file.chmod(mode)
        with pytest.raises(ConfigurationError, match=f"chmod 600 {password_file}"):
            find_url("redis://here")

    @pytest.mark.parametrize("mode", [0o600, 0o400])
    def test_a_file_of_its_owner_alone_is_read(self, password_file: Path, mode: int) -> None:
        password_file.chmod(mode)
        assert SECRET in find_url("redis://here")

    def test_a_missing_file_is_named(self, password_file: Path) -> None:
        password_file.unlink()
        with pytest.raises(ConfigurationError, match=str(password_file)):
            find_url("redis://here")

    def test_a_directory_in_its_place_is_named(self, password_file: Path) -> None:
        password_file.unlink()
        password_file.mkdir(mode=0o700)
        with pytest.raises(ConfigurationError, match=str(password_file)):
            find_url("redis://here")

    def test_a_file_that_is_no_text_is_named(self, password_file: Path) -> None:
        password_file.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigurationError, match=str(password_file)):
            find_url("redis://here")


def connected_with(url: str) -> dict[str, object]:
    """The options of the connections that `url` leads to; nothing is sent."""
    return dict(connect(url, "test").connection_pool.connection_kwargs)


class TestRedact:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            (f"redis://:{SECRET}@here:6379/0", "redis://here:6379/0"),
            (f"rediss://actor:{SECRET}@here", "rediss://actor@here"),
            (f"redis://u:{SECRET}@x@here", "redis://u@here"),
            (f"unix:///run/r.sock?password={SECRET}&db=1", "unix:///run/r.sock?db=1"),
            (f"unix:///run/r.sock?db=1&password={SECRET}", "unix:///run/r.sock?db=1"),
            (f"unix://u:{SECRET}@/run/r.sock", "unix://u@/run/r.sock"),
            (f"rediss://here?ssl_password={SECRET}", "rediss://here"),
            ("redis://actor@here", "redis://actor@here"),
            ("redis://here", "redis://here"),
            ("unix:///run/r.sock", "unix:///run/r.sock"),
        ],
    )
    def test_the_secret_is_left_out_and_the_rest_is_not(self, url: str, shown: str) -> None:
        assert redact(url) == shown

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            (f"redis://:{SECRET}@here", True),
            (f"unix:///r.sock?password={SECRET}", True),
            ("redis://here", False),
            ("redis://user@here", False),
        ],
    )
    def test_a_url_with_a_secret_is_recognised(self, url: str, expected: bool) -> None:
        assert has_password(url) is expected


class TestConnect:
    @pytest.mark.parametrize(
        "options",
        [
            "decode_responses=yes",
            "protocol=3",
            "socket_timeout=60",
            "socket_connect_timeout=60",
            "retry_on_timeout=yes",
        ],
    )
    def test_no_url_changes_what_the_product_relies_on(self, options: str) -> None:
        found = connected_with(f"redis://here?{options}")
        expected = {
            "decode_responses": False,
            "protocol": 2,
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
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
    def test_what_passes_is_waited_out(self, error: redis.RedisError) -> None:
        assert isinstance(classify(error), TransientError)

    @pytest.mark.parametrize("error", FATAL, ids=str)
    def test_what_needs_a_human_is_not(self, error: redis.RedisError) -> None:
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

        assert Patience(StopRequest()).call("try", attempt) == "done"

    def test_what_needs_a_human_is_not_repeated(self) -> None:
        attempts = []

        def attempt() -> None:
            attempts.append(1)
            raise exceptions.NoPermissionError("this user has no permissions to run the 'xadd' command")

        with pytest.raises(ConfigurationError, match="xadd"):
            Patience(StopRequest()).call("try", attempt)
        assert len(attempts) == 1

    def test_a_deadline_already_past_allows_one_attempt(self) -> None:
        def attempt() -> None:
            raise redis.TimeoutError("no")

        with pytest.raises(UnavailableError, match="cannot try"):
            Patience(StopRequest(), deadline_s=0.0).call("try", attempt)

    def test_pauses_grow_to_a_second_and_differ_between_processes(self) -> None:
        one, other = backoff(), backoff()
        mine = [next(one) for _ in range(20)]
        assert mine != [next(other) for _ in range(20)]
        assert mine[0] <= 0.05
        assert all(0.5 <= pause <= 1.0 for pause in mine[6:])
