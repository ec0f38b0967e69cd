"""Builds the redis-cli command line for a Redis URL, without secrets. Pure."""

import shlex
from urllib.parse import urlsplit

from dppo_redis.store.address import Address, read_address

_TLS_FLAGS = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}


def redis_cli(url: str) -> str:
    """The command for the server of `url`. For sentinels, the command that asks for the present primary."""
    address = read_address(url)
    words = ["redis-cli", *_tls(url, address)]
    if address.sentinels:
        host, port = address.sentinels[0]
        words += ["-h", host, "-p", str(port), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service]
        return f"{shlex.join(words)}, then with that host and port:"
    options = address.options
    if "path" in options:
        words += ["-s", options["path"]]
    else:
        words += ["-h", options.get("host", "localhost"), "-p", str(options.get("port", 6379))]
    if options.get("username"):
        words += ["--user", options["username"]]
    if options.get("db"):
        words += ["-n", str(options["db"])]
    return shlex.join(words)


def _tls(url: str, address: Address) -> list[str]:
    if urlsplit(url).scheme not in ("rediss", "sentinels"):
        return []
    flags = [(flag, address.options[name]) for name, flag in _TLS_FLAGS.items() if name in address.options]
    return ["--tls", *(word for pair in flags for word in pair)]
