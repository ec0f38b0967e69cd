"""Connection classes for redis-py: TCP, Unix socket, TLS, and the primary that sentinels name.

They add two things to redis-py. A server that can never serve raises one clear error. A connection leaves a
server that is no longer the primary.
"""

import socket
import ssl
from typing import Any, cast

import redis
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool, SentinelManagedConnection

from dppo_redis.store.address import Address
from dppo_redis.store.progress_timeout import SteadyConnection

SENTINEL_TIMEOUT_S = 1.0  # then the next sentinel is asked
_PROBE_TIMEOUT_S = 1.0
_NOT_LEADING = ("NOREPLICAS", "MASTERDOWN")
_FIT: set[str] = set()  # addresses of servers that are known not to be nodes of a cluster
NO_CLUSTER = (
    "a run needs one server that holds all of its keys; use a single server (cluster-enabled no), "
    "with replicas and Sentinel (sentinel://...) where it has to survive the loss of a host"
)


class MisconfiguredError(redis.RedisError):
    """The server is not what its URL says; waiting does not help."""


class _ServerConnection(SteadyConnection):
    """Asks a server once for its mode, with HELLO, which every user may call."""

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Greet the server.

        Raises:
            MisconfiguredError: it is a node of a cluster.
        """
        super().on_connect_check_health(check_health)
        address = self._host_error()  # type: ignore[no-untyped-call]
        if address not in _FIT:
            if self._mode() == "cluster":
                raise MisconfiguredError(f"{address} is a node of a Redis Cluster: {NO_CLUSTER}")
            _FIT.add(address)

    def _mode(self) -> str:
        self.send_command("HELLO", check_health=False)  # type: ignore[no-untyped-call]
        try:
            answer = self.read_response()
        except redis.ResponseError:  # a proxy without HELLO; later replies show whether its server is a node
            return ""
        return _plain(dict(zip(answer[::2], answer[1::2], strict=False)).get(b"mode", b""))


def _plain(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else ""


class UnixConnection(_ServerConnection, UnixDomainSocketConnection):
    """A connection through a Unix socket to a server on this machine."""


class TcpConnection(_ServerConnection, redis.Connection):
    """Disconnects from a server that is not the primary, so that the next connect finds the primary.

    The primary is behind the same address or is named by the sentinels. A demoted primary answers READONLY. A
    primary that is cut off from its replicas answers NOREPLICAS.
    """

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Greet the server; if it hangs up at once, it may speak TLS."""
        try:
            super().on_connect_check_health(check_health)
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if not isinstance(self, SSLConnection) and _answers_with_tls(self.host, self.port):
                raise redis.ConnectionError(
                    f"{self.host}:{self.port} speaks TLS: use rediss:// (sentinels:// with sentinels)"
                ) from error
            raise

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """A reply; raises ConnectionError if the server is not the primary."""
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if not (isinstance(error, redis.exceptions.ReadOnlyError) or str(error).startswith(_NOT_LEADING)):
                raise
            self.disconnect()
            raise redis.ConnectionError(f"this server does not lead now: {error}") from error


class TlsConnection(TcpConnection, SSLConnection):
    """A TLS connection that names two mistakes: the server speaks no TLS, or asks for a certificate.

    A handshake with a server without TLS may never end. openssl reports a missing certificate only to a
    client that reads before it writes.
    """

    def _connect(self) -> Any:
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except ssl.SSLCertVerificationError:
            raise
        except OSError:
            if _answers_without_tls(self.host, self.port):
                raise MisconfiguredError(
                    f"{self.host}:{self.port} speaks no TLS (the embedded server never does): use redis:// "
                    "or the port that the server calls tls-port"
                ) from None
            raise

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Greet the server."""
        try:
            super().on_connect_check_health(check_health)
        except redis.AuthenticationError:
            raise
        except redis.ConnectionError:
            if self._is_asked_for_a_certificate():
                raise MisconfiguredError(
                    f"{self.host}:{self.port} asks for a client certificate that it trusts: add "
                    "ssl_certfile=...&ssl_keyfile=... to the URL"
                ) from None
            raise

    def _is_asked_for_a_certificate(self) -> bool:
        try:
            with self._connect() as probe:
                probe.settimeout(_PROBE_TIMEOUT_S)
                probe.recv(1)
        except ssl.SSLError as error:
            return "CERTIFICATE" in (error.reason or "")
        except (OSError, redis.RedisError):
            return False  # another cause: the caller raises its own error
        return False


def _answers_with_tls(host: str, port: int) -> bool:
    """Whether the server answers a TLS handshake with TLS; a refusal counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), _PROBE_TIMEOUT_S) as probe, context.wrap_socket(probe):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _answers_without_tls(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _PROBE_TIMEOUT_S) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(1) in (b"+", b"-")
    except OSError:
        return False


class PrimaryConnection(TcpConnection, SentinelManagedConnection):
    """A connection to the primary; it asks the sentinels at each connect."""


class PrimaryTlsConnection(PrimaryConnection, TlsConnection):
    """A connection to the primary through TLS."""


class Sentinels(Sentinel):
    """Asks one sentinel after another. The next search begins with the sentinel that answered."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Address of the primary.

        Raises:
            MasterNotFoundError: no sentinel knows a primary now.
            MisconfiguredError: none of the sentinels that answer has such a service.
            AuthenticationError, NoPermissionError: a sentinel refuses the user or password.
        """
        unknown, silent = 0, []
        for position, sentinel in enumerate(self.sentinels):
            try:
                services = cast(dict[str, dict[str, Any]], sentinel.sentinel_masters())
            except redis.AuthenticationError:
                raise
            except redis.ResponseError as error:
                if not str(error).startswith("unknown command"):
                    raise
                raise MisconfiguredError(f"{_name(sentinel)} is no sentinel: {error}") from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                silent.append(str(error))
                continue
            state = services.get(service_name)
            unknown += state is None
            if state and self.check_master_state(state, service_name):  # type: ignore[no-untyped-call]
                self.sentinels.insert(0, self.sentinels.pop(position))
                return state["ip"], state["port"]
        if unknown == len(self.sentinels):
            raise MisconfiguredError(f"the sentinels watch no service {service_name!r}")
        raise MasterNotFoundError(
            f"the sentinels know no primary of {service_name!r} now" + "".join(f"; {text}" for text in silent)
        )


def _name(client: redis.Redis) -> str:
    options = client.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"


def make_pool(address: Address, **common: Any) -> redis.ConnectionPool:
    """A pool of connections to the server, or to the primary; nothing is sent yet."""
    options = {"connection_class": TcpConnection, **address.options, **common}
    tls = options["connection_class"] is SSLConnection
    if not address.sentinels:
        ours = {SSLConnection: TlsConnection, UnixDomainSocketConnection: UnixConnection}
        options["connection_class"] = ours.get(options["connection_class"], options["connection_class"])
        return redis.ConnectionPool(**options)
    options["connection_class"] = PrimaryTlsConnection if tls else PrimaryConnection
    for_sentinels = {
        **{name: common[name] for name in ("protocol", "retry", "client_name")},
        "socket_timeout": SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": SENTINEL_TIMEOUT_S,
        **address.sentinel_options,
    }
    sentinels = Sentinels(list(address.sentinels), sentinel_kwargs=for_sentinels)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(address.service, sentinels, **options)  # type: ignore[no-untyped-call]
