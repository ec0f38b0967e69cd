"""The parts of a Redis URL, and its secrets."""

from pathlib import Path
from typing import Any

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.store.address import has_password, read_address, redact, with_credentials

SECRET = "hunter2"


class TestSentinel:
    def test_hosts_service_and_options_are_read(self) -> None:
        address = read_address("sentinel://u:p%40w@one:1,two,[::1]:3/mymaster?db=2&sentinel_password=s%20s")
        assert address.sentinels == (("one", 1), ("two", 26379), ("::1", 3))
        assert address.service == "mymaster"
        assert address.options == {"username": "u", "password": "p@w", "db": 2}
        assert address.sentinel_options == {"password": "s s", "ssl": False}

    def test_certificates_are_for_sentinels_and_servers(self, tmp_path: Path) -> None:
        file = tmp_path / "ca.crt"
        file.touch()
        address = read_address(f"sentinels://one/mymaster?ssl_ca_certs={file}")
        assert address.sentinel_options == {"ssl_ca_certs": str(file), "ssl": True}
        assert address.options["ssl_ca_certs"] == str(file)

    @pytest.mark.parametrize(
        "url",
        [
            "sentinel://one:1,two:2",
            "sentinel://one:1/",
            "sentinel:///mymaster",
            "sentinel://one,,two/mymaster",
            "sentinel://one:port/mymaster",
            "sentinel://one/mymaster/2",
            "sentinel://one/mymaster?db=two",
        ],
    )
    def test_a_malformed_one_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="bad Redis URL"):
            read_address(url)

    def test_an_unknown_option_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="colour"):
            read_address("sentinel://one/mymaster?colour=blue")


@pytest.mark.parametrize(
    "url", ["redis://here/one", "redis://here/1x", "rediss://here/3/4", "redis://here/-1"]
)
def test_a_database_that_is_no_number_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="bad Redis URL"):
        read_address(url)


def test_a_socket_whose_path_is_too_long_for_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="107"):
        read_address(f"unix:///{'x' * 107}")
    assert read_address(f"unix:///{'x' * 106}").options["path"] == f"/{'x' * 106}"


class TestCertificates:
    @pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
    def test_a_file_that_is_not_there_is_named(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{name}: there is no file /nowhere/x.pem"):
            read_address(f"rediss://here?{name}=/nowhere/x.pem")

    def test_a_requirement_that_tls_does_not_know_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="perhaps"):
            read_address("rediss://here?ssl_cert_reqs=perhaps")


def options_of(url: str) -> dict[str, Any]:
    address = read_address(url)
    return {name: address.options.get(name) for name in ("username", "password", "db")}


@pytest.mark.parametrize(
    "url",
    [
        "redis://old:gone@here:6379/2",
        "rediss://here/2",
        "unix://old:gone@/run/r.sock?db=2",
        "unix:///run/r.sock?username=old&password=gone&db=2",
        "sentinel://old:gone@one,two/mymaster?db=2&sentinel_password=kept",
    ],
)
@pytest.mark.parametrize("password", ["p/w#1@%&+?=:", "pass word", "ünïcode"])
def test_credentials_of_any_characters_replace_those_of_the_url(url: str, password: str) -> None:
    changed = with_credentials(url, "actor", password)
    if url.startswith("unix://old"):  # redis-py takes the name before the @ first
        assert options_of(changed)["password"] == password
        return
    assert options_of(changed) == {"username": "actor", "password": password, "db": 2}
    assert read_address(changed).sentinel_options.get("password") == ("kept" if "kept" in url else None)


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
