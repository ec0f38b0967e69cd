"""`dppo-redis quarantine` on entries that a real intake has refused."""

import json

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from ops.commands.quarantine import main
from tests.conftest import RedisServer
from tests.integration.learner_side import add, lead, make_entry, make_reader


@pytest.fixture(autouse=True)
def _refused(client: Client, keys: RunKeys, stop: StopRequest) -> None:
    reader = make_reader(client, keys, lead(client, keys, stop))
    add(
        client,
        keys,
        make_entry(crc=1, actor=7, seq=5),
        {"evil\x1b[2J": "\x1b[31m\x00", "payload": b"\xff\x00ab"},
    )
    reader.poll_until(settled=2)


def run(server: RedisServer, keys: RunKeys, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main([keys.run, "--redis", server.url, *flags]) == 0
    return capsys.readouterr().out


def test_it_lists_reason_head_and_first_bytes_newest_first(
    redis_server: RedisServer, keys: RunKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(run(redis_server, keys, capsys, "--json"))
    assert [entry["reason"] for entry in found["entries"]] == ["header", "crc"]
    assert found["entries"][0]["payload_hex"] == "ff006162"
    assert (found["entries"][1]["head"]["actor"], found["entries"][1]["head"]["seq"]) == ("7", "5")
    table = run(redis_server, keys, capsys)
    assert "crc" in table
    assert "ff 00 61 62" in table


def test_one_entry_is_shown_whole_without_control_characters(
    redis_server: RedisServer, keys: RunKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = json.loads(run(redis_server, keys, capsys, "--json"))["entries"][0]
    for name in ("id", "entry"):
        shown = run(redis_server, keys, capsys, "--show", newest[name])
        assert "reason  header" in shown
        assert "ff 00 61 62" in shown
        assert "..ab" in shown
        assert "\x1b" not in shown


def test_it_is_cleared(
    redis_server: RedisServer, client: Client, keys: RunKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(redis_server, keys, capsys, "--clear") == "2 removed\n"
    assert client.xlen(keys.quarantine) == 0
    assert "the quarantine is empty" in run(redis_server, keys, capsys)


def test_an_entry_or_a_run_that_is_not_there_is_named(redis_server: RedisServer, keys: RunKeys) -> None:
    with pytest.raises(ConfigurationError, match="no entry 1-1"):
        main(["--run", keys.run, "--redis", redis_server.url, "--show", "1-1"])
    with pytest.raises(ConfigurationError, match="no run other"):
        main(["other", "--redis", redis_server.url])
