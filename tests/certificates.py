"""Certificates that are good for an hour of tests: an authority, a server's and a client's, by openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HAS_OPENSSL = shutil.which("openssl") is not None
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
        """The same, with the client's own certificate."""
        client = f"ssl_certfile={self.file('client.crt')}&ssl_keyfile={self.file('client.key')}"
        return f"{self.trust}&{client}"

    def server_arguments(self, port: int, *, mutual: bool) -> list[str]:
        """What makes a Redis listen with TLS."""
        return [
            *("--tls-port", str(port), "--tls-ca-cert-file", self.file("ca.crt")),
            *("--tls-cert-file", self.file("server.crt"), "--tls-key-file", self.file("server.key")),
            *("--tls-auth-clients", "yes" if mutual else "no"),
        ]


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
