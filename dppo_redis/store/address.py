"""Parses Redis URLs into servers, sentinels and options, and hides their secrets.

It reads text only, and checks that the certificate files exist. It adds two forms to those of redis-py:

    sentinel://[user:password@]host[:port][,host[:port]...]/service[?db=0&sentinel_password=...]
    sentinels://...                    the same through TLS, to the sentinels and to the servers

All other parameters than `sentinel_...` mean the same as in redis:// and are for the servers.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import redis
from redis.connection import parse_url

from dppo_redis.errors import ConfigurationError

SENTINEL_PORT = 26379
_LONGEST_SOCKET_PATH = 107
_SENTINEL_SCHEMES = {"sentinel": "redis", "sentinels": "rediss"}
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True)
class Address:
    """A parsed URL."""

    options: dict[str, Any]  # of redis-py's connections to the server
    sentinels: tuple[tuple[str, int], ...] = ()  # empty: the server itself is named
    service: str = ""  # the primary's name at the sentinels
    sentinel_options: dict[str, Any] = field(default_factory=dict)  # of the connections to them


def read_address(url: str) -> Address:
    """Parse a URL; nothing is sent.

    Raises:
        ConfigurationError: the URL is malformed. The message does not quote it, because it may hold a
        password.
    """
    try:
        address = _read(url)
    except ValueError:
        scheme, separator, _ = url.partition("://")
        shown = f" {scheme[:10]}://..." if separator else " without a scheme"
        raise ConfigurationError(
            f"bad Redis URL{shown}: it is redis://[user:password@]host[:port][/db], rediss://..., "
            "unix:///path or sentinel://[user:password@]host[:port],.../service; special characters in "
            "a password are percent-encoded"
        ) from None
    _try_options(address.options)
    if len(os.fsencode(address.options.get("path", ""))) > _LONGEST_SOCKET_PATH:
        raise ConfigurationError(
            f"bad Redis URL: the path of a unix socket has at most {_LONGEST_SOCKET_PATH} characters"
        )
    for name in _FILES:
        if name in address.options and not Path(address.options[name]).is_file():
            raise ConfigurationError(f"bad Redis URL: {name}: there is no file {address.options[name]}")
    return address


def _read(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in _SENTINEL_SCHEMES:
        database = unquote(parts.path).strip("/")
        if parts.scheme != "unix" and not (database.isdecimal() or not database):
            raise ValueError("no database")  # redis-py would take number 0 instead
        return Address(parse_url(url))  # type: ignore[no-untyped-call]
    user, _, hosts = parts.netloc.rpartition("@")
    sentinels = tuple(_read_host(host) for host in hosts.split(","))
    service = unquote(parts.path.strip("/"))
    if not service or "/" in service:
        raise ValueError("no service")
    query = parse_qsl(parts.query)
    for_servers = urlencode([(name, value) for name, value in query if name not in _SENTINEL_OPTIONS])
    # The rest is read as a server's URL, so that each part means the same there and here.
    scheme = _SENTINEL_SCHEMES[parts.scheme]
    options = parse_url(f"{scheme}://{user}{'@' if user else ''}host?{for_servers}")  # type: ignore[no-untyped-call]
    del options["host"]
    with_tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    for_sentinels = {_SENTINEL_OPTIONS[name]: value for name, value in query if name in _SENTINEL_OPTIONS}
    return Address(options, sentinels, service, {**for_sentinels, **with_tls, "ssl": scheme == "rediss"})


def _read_host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, parts.port or SENTINEL_PORT


def _try_options(options: dict[str, Any]) -> None:
    rest = dict(options)
    try:
        rest.pop("connection_class", redis.Connection)(**rest)  # nothing is sent yet
    except TypeError as error:
        raise ConfigurationError(f"bad Redis URL: {str(error).rpartition(') ')[2]}") from None
    except redis.RedisError as error:
        raise ConfigurationError(f"bad Redis URL: {error}") from None


def with_credentials(url: str, user: str | None, password: str) -> str:
    """The URL with this password, and this user if one is given; they replace those in the URL."""
    bare = redact(url)
    parts = urlsplit(bare)
    old = parts.username or ""
    if parts.scheme == "unix":
        given = {"password": password} if user is None else {"username": user, "password": password}
        query = "&".join(
            item for item in parts.query.split("&") if item and item.partition("=")[0] not in given
        )
        query = "&".join(filter(None, [query, urlencode(given, quote_via=quote)]))
        return f"unix://{old}{'@' if old else ''}{parts.path}?{query}"
    host = parts.netloc.rpartition("@")[2]
    name = old if user is None else quote(user, safe="")
    with_secret = parts._replace(netloc=f"{name}:{quote(password, safe='')}@{host}")
    kept = [item for item in urlsplit(url).query.split("&") if item]  # ssl_password, sentinel_password
    return urlunsplit(with_secret._replace(query="&".join(kept)))


def has_password(url: str) -> bool:
    """Whether a URL carries a secret."""
    return redact(url) != url


def redact(url: str) -> str:
    """The URL without its secrets, for logs, dumps and screens; the user name stays."""
    parts = urlsplit(url)
    query = "&".join(
        item for item in parts.query.split("&") if item and "password" not in item.partition("=")[0]
    )
    user = f"{parts.username}@" if parts.username else ""
    netloc = user + parts.netloc.rpartition("@")[2]
    if parts.scheme == "unix":  # urlunsplit would drop the empty host
        return f"unix://{netloc}{parts.path}" + (f"?{query}" if query else "")
    return urlunsplit(parts._replace(netloc=netloc, query=query))
