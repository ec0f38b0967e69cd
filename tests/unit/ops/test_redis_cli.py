"""The redis-cli line that `train` shows."""

from pathlib import Path

import pytest

from ops.fleet.redis_cli import redis_cli


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://here", "redis-cli -h here -p 6379"),
        ("redis://me:hunter2@here:1/2", "redis-cli -h here -p 1 --user me -n 2"),
        ("unix:///run/r.sock?password=hunter2&db=3", "redis-cli -s /run/r.sock -n 3"),
        (
            "sentinel://:hunter2@one:5,two/mymaster?sentinel_password=hunter2",
            "redis-cli -h one -p 5 SENTINEL GET-MASTER-ADDR-BY-NAME mymaster, then with that host and port:",
        ),
    ],
)
def test_the_command_reaches_the_server_and_holds_no_secret(url: str, expected: str) -> None:
    assert redis_cli(url) == expected


def test_the_command_names_the_certificates(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.touch()
    assert redis_cli(f"rediss://here?ssl_ca_certs={file}") == (
        f"redis-cli --tls --cacert {file} -h here -p 6379"
    )
