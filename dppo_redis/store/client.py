"""Makes every connection to Redis, and decides which errors services wait out.

A connection speaks RESP2, never decodes (payloads are bytes) and never repeats a command by itself.
Services wait for ever while an error may pass (refused, timeout, loading, failing over, full). An error
that needs a human (password, rights, certificate) is raised at once.
"""

import math
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dppo_redis.errors import ConfigurationError, DppoError, StoppedError, UnavailableError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.address import Address, read_address
from dppo_redis.store.connections import NO_CLUSTER, MisconfiguredError, make_pool
from dppo_redis.store.error_causes import Recurrence, described

SOCKET_TIMEOUT_S = 5.0  # without progress; ten times the longest blocking read; a URL may set another
_LEAST_TIMEOUT_S = 1.0  # twice the longest blocking read
INTERACTIVE_PATIENCE_S = 5.0
TRUSTED_S = 1.0  # a connection counts as open for this time after a reply
_READ_BYTES = 2**20  # for each read: a batch of rollouts then needs a few reads, not hundreds
_LONGEST_PAUSE_S = 1.0
_MOST_HANG_UPS = 3
_LEAST_BULK_LIMIT = 2**20  # a server accepts values of this size with any proto-max-bulk-len
# WRONGTYPE: another program overwrote a key of the run; the learner's keeper repairs it.
_TRANSIENT_REPLIES = (
    "MISCONF", "UNBLOCKED", "LOADING", "NOREPLICAS", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN",
    "READONLY", "OOM", "WRONGTYPE",
)  # fmt: skip
_TRANSIENT_ERRORS = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.NoScriptError,  # a failover between loading the script and using it
)
_FATAL_TLS = re.compile("CERTIFICATE|UNKNOWN_CA|VERSION|HANDSHAKE_FAILURE|KEY|PEM")
_FATAL_REPLIES = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED")
_OF_A_CLUSTER = (redis.exceptions.MovedError, redis.exceptions.ClusterCrossSlotError)

Client = redis.Redis
T = TypeVar("T")
_JITTER = random.Random()  # the user's code may seed the global one, and all actors would pause alike


class TransientError(DppoError):
    """Redis cannot answer now; waiting helps."""


def connect(url: str, name: str) -> Client:
    """A client for `url`, which connects at its first command. `name` shows in CLIENT LIST.

    Raises:
        ConfigurationError: the URL is malformed or has a setting that cannot be used.
    """
    address = read_address(url)
    pool = make_pool(
        address,
        decode_responses=False,
        protocol=2,
        client_name=name,
        driver_info=None,  # no CLIENT SETINFO: it would need one more access right
        socket_timeout=_timeout_s(address, "socket_timeout"),
        socket_connect_timeout=_timeout_s(address, "socket_connect_timeout"),
        socket_read_size=_READ_BYTES,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        retry_on_error=[],
    )
    return redis.Redis(connection_pool=pool)


def _timeout_s(address: Address, name: str) -> float:
    wanted = float(address.options.get(name) or SOCKET_TIMEOUT_S)
    if not _LEAST_TIMEOUT_S <= wanted < math.inf:
        raise ConfigurationError(
            f"bad Redis URL: {name}: at least {_LEAST_TIMEOUT_S:g} second (got {wanted:g})"
        )
    return wanted


def eviction_warning(client: Client) -> str:
    """A warning if the server may evict keys; empty if it does not, or does not answer the question."""
    policy = "noeviction"
    with suppress(redis.exceptions.NoPermissionError):
        policy = str(client.info("memory").get("maxmemory_policy", policy))
    if policy == "noeviction":
        return ""
    return (
        f"this Redis evicts keys when its memory is full (maxmemory-policy {policy}): weights or all "
        "rollouts may vanish; set it to noeviction"
    )


def pack(*commands: Sequence[Any]) -> bytes:
    """Encode commands into one piece: one write wakes the server once; redis-py's pipeline makes several."""
    return b"".join(hiredis.pack_command(tuple(command)) for command in commands)


def pack_around(command: Sequence[Any], large: bytes, then: bytes) -> list[bytes]:
    """A command with the last argument `large`, which is not copied, and packed commands, in pieces."""
    before = hiredis.pack_command((*command, b""))[: -len(b"$0\r\n\r\n")]
    return [before + b"$%d\r\n" % len(large), large, b"\r\n" + then]


def replies(client: Client, packed: bytes, count: int) -> Iterator[Any]:
    """Yield the plain replies to `count` packed commands as they come; an error reply is yielded, too.

    redis-py's pipeline reads all replies before the first can be used.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the server may have executed some commands.
    """
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    left = count
    try:
        connection.send_packed_command([packed])
        while left:
            reply = _read_reply(connection)
            left -= 1
            yield reply
    finally:
        if left:  # no caller waits for the remaining replies
            connection.disconnect()
        pool.release(connection)


class Channel:
    """A connection that one thread keeps: taking one from the pool costs a quarter of a push."""

    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._used_at = 0.0  # monotonic

    def ask(self, packed: Sequence[bytes], count: int) -> list[Any]:
        """The plain replies to `count` packed commands in pieces; an error reply is an item of the list.

        Raises:
            redis.ConnectionError, redis.TimeoutError: the server may have executed some commands.
        """
        if time.monotonic() - self._used_at > TRUSTED_S:
            self._give_back()  # the pool finds out whether the server closed it
        if self._connection is None:
            self._connection = self._pool.get_connection()
        try:
            self._connection.send_packed_command(packed)
            answers = [_read_reply(self._connection) for _ in range(count)]
        except BaseException:
            self._connection.disconnect()
            self._give_back()
            raise
        self._used_at = time.monotonic()
        return answers

    def hang_up(self) -> None:
        """End the owner's wait from another thread; the owner gets a ConnectionError."""
        sock = getattr(self._connection, "_sock", None)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of the Redis library into `TransientError` or `ConfigurationError`."""
    try:
        yield
    except redis.RedisError as error:
        raise classify(error) from error


def classify(error: redis.RedisError) -> DppoError:
    """The error of ours for an error of Redis: TransientError if waiting helps, else ConfigurationError."""
    text = str(error).rpartition("caused error: ")[2]  # a pipeline prefixes its own text
    reply = text.split(" ", 1)[0]
    if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
        return ConfigurationError(f"Redis refuses the user or password: {error}")
    if isinstance(error, redis.exceptions.NoPermissionError) or reply in _FATAL_REPLIES:
        return ConfigurationError(f"Redis refuses: {error}")
    if isinstance(error, MisconfiguredError):
        return ConfigurationError(str(error))
    if isinstance(error, _OF_A_CLUSTER) or reply in ("CROSSSLOT", "MOVED"):
        return ConfigurationError(f"this Redis is a cluster: {NO_CLUSTER} ({error})")
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigurationError(f"Redis' certificate is not trusted: {error}")
    if isinstance(cause, ssl.SSLError) and _FATAL_TLS.search(cause.reason or ""):
        return ConfigurationError(f"TLS with Redis fails: {error}")
    if isinstance(error, _TRANSIENT_ERRORS) or reply in _TRANSIENT_REPLIES:
        return TransientError(str(error))
    if text.startswith("unknown command"):
        return ConfigurationError(
            f"this is no Redis that we know ({error}); a sentinel is named by sentinel://"
        )
    return ConfigurationError(f"Redis answers an error that this release does not expect: {error}")


class OversizeDetector:
    """Detects that commands are too large for a server, which hangs up on them but answers small ones."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hung_up = 0  # in a row

    def passed(self) -> None:
        """Note that the server has accepted a command."""
        self._hung_up = 0

    def check(self, message: str, size: int, remedy: str, error: redis.RedisError) -> None:
        """Judge a command with `message` of `size` bytes that failed with `error`.

        Raises:
            ConfigurationError: the server has hung up on it several times.
        """
        if size < _LEAST_BULK_LIMIT or not isinstance(error, redis.ConnectionError):
            return
        answers: Any = False
        with suppress(redis.RedisError):
            answers = self._client.ping()
        self._hung_up = self._hung_up + 1 if answers else 0
        if self._hung_up >= _MOST_HANG_UPS:
            raise ConfigurationError(
                f"Redis hangs up whenever {message} of {size} bytes is sent: raise its proto-max-bulk-len, "
                f"or {remedy}"
            )


class RetryLoop:
    """Repeats an attempt while Redis cannot answer, with random pauses."""

    def __init__(self, stop: StopRequest, deadline_s: float | None = None) -> None:
        self._stop = stop
        self._deadline_s = deadline_s
        self.recurrence = Recurrence()  # of the error that repeats

    def call(self, purpose: str, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns; repeat it while Redis cannot answer.

        Raises:
            ConfigurationError: Redis refuses for good.
            UnavailableError: the deadline of an interactive command has passed.
            StoppedError: a stop was requested meanwhile.
        """
        started = time.monotonic()
        pauses = backoff()
        while True:
            try:
                with translated():
                    result = attempt()
                self.recurrence.over()
                return result
            except TransientError as error:
                self._pause(purpose, error, started, next(pauses))

    def _pause(self, purpose: str, error: TransientError, started: float, pause_s: float) -> None:
        if self._stop.requested:
            raise StoppedError(f"stopped while waiting to {purpose}") from error
        if self._deadline_s is not None and time.monotonic() - started + pause_s > self._deadline_s:
            explanation = described(purpose, str(error))
            raise UnavailableError(f"cannot {purpose}: Redis does not answer ({explanation})") from error
        self.recurrence.log(purpose, error)
        self._stop.sleep(pause_s)


def backoff() -> Iterator[float]:
    """Growing random pauses in seconds, so that the processes of a fleet do not all return at once."""
    longest = 0.05
    while True:
        yield _JITTER.uniform(longest / 2, longest)
        longest = min(2 * longest, _LONGEST_PAUSE_S)
