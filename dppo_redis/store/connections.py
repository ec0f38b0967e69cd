"""The connections of a client: through TLS, and to whichever server the sentinels call the primary.

redis-py does the work. Added here: one clear error for what waiting never mends, and leaving a server
that no longer leads.
"""

import socket
import ssl
from typing import Any, cast

import redis
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool, SentinelManagedConnection

from dppo_redis.store.address import Address
from dppo_redis.store.progress_timeout import SteadyConnection

SENTINEL_TIMEOUT_S = 1.0  # the next one is asked after that
_PROBE_TIMEOUT_S = 1.0
_NOT_LEADING = ("NOREPLICAS", "MASTERDOWN")
_FIT: set[str] = set()  # addresses of servers that are no nodes of a cluster
NO_CLUSTER = (
    "a run needs one server that holds all of its keys; use a single server (cluster-enabled no), "
    "with replicas and Sentinel (sentinel://...) where it has to survive the loss of a host"
)


class MisconfiguredError(redis.RedisError):
    """A server that cannot be what its URL says; waiting does not help."""


class _ServerConnection(SteadyConnection):
    """Asks a server once what it is, by HELLO, to which every user has the right."""

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
            told = self.read_response()
        except redis.ResponseError:  # a proxy, say: its server is known by what it answers
            return ""
        return _plain(dict(zip(told[::2], told[1::2], strict=False)).get(b"mode", b""))


def _plain(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else ""


class UnixConnection(_ServerConnection, UnixDomainSocketConnection):
    """To a server of this machine."""


class TcpConnection(_ServerConnection, redis.Connection):
    """Leaves a server that does not lead: behind the same address, or the sentinels, another one does.

    A primary that was demoted answers READONLY, one cut off from its replicas NOREPLICAS.
    """

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Greet the server; one that hangs up at once may speak TLS."""
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
        """A reply; raises ConnectionError where the server does not lead."""
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if not (isinstance(error, redis.exceptions.ReadOnlyError) or str(error).startswith(_NOT_LEADING)):
                raise
            self.disconnect()
            raise redis.ConnectionError(f"this server does not lead now: {error}") from error


class TlsConnection(TcpConnection, SSLConnection):
    """Says so when the server speaks no TLS, whose end of the handshake may never come, and when it
    asks for a certificate: openssl reports that only to a client that reads before it writes.
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
            return False  # it is away for another reason: the caller raises the error that it met
        return False


def _answers_with_tls(host: str, port: int) -> bool:
    """Whether a TLS handshake gets an answer of TLS, be it a refusal."""
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
    """A connection to the primary; each connect asks the sentinels anew."""


class PrimaryTlsConnection(PrimaryConnection, TlsConnection):
    """The same, through TLS."""


class Sentinels(Sentinel):
    """Asks one sentinel after the other; the one that answered is asked first the next time."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Address of the primary.

        Raises:
            MasterNotFoundError: no sentinel knows a primary now.
            MisconfiguredError: every sentinel that answers has no such service.
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
