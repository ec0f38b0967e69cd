"""A whole training run on a server with TLS, client certificates and a user for each role."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.store.address import with_credentials
from dppo_redis.store.client import Client
from dppo_redis.store.credentials import Role, read_credentials
from dppo_redis.store.keys import RunKeys
from ops.commands.acl import ACL_FILE, ADMIN, make_users
from tests.certificates import Certificates, make_certificates, needs_tls, tls_server
from tests.conftest import RedisServer, opened, wait_until
from tests.e2e.support import SLOW, Command, assert_books_balance, assert_nothing_left, free_port, tree

pytestmark = needs_tls
RUN = "guarded"
KEYS = RunKeys(RUN)


@dataclass(frozen=True)
class Guarded:
    """A server that requires a certificate and a password."""

    url: str  # with certificates, without a user
    credentials: Path
    admin: Client

    @property
    def environment(self) -> dict[str, str]:
        return {"DPPO_REDIS_URL": self.url, "DPPO_REDIS_CREDENTIALS": str(self.credentials)}

    @property
    def passwords(self) -> list[str]:
        return [read_credentials(self.credentials / role)[1] for role in Role]

    def users(self) -> dict[str, str]:
        """User of each connection, by the connection's name."""
        clients = cast(list[dict[str, Any]], self.admin.client_list())
        return {client["name"]: client["user"] for client in clients}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    certificates: Certificates = make_certificates(tmp_path_factory.mktemp("tls"))
    credentials = tmp_path_factory.mktemp("acl")
    make_users(credentials, None)
    port = free_port()
    arguments = certificates.server_arguments(port, mutual=True)
    server = RedisServer(tls_server(), *arguments, "--aclfile", str(credentials / ACL_FILE))
    try:
        server.start()
        with opened(with_credentials(server.url, *read_credentials(credentials / ADMIN))) as admin:
            yield Guarded(f"rediss://127.0.0.1:{port}/0?{certificates.mutual}", credentials, admin)
    finally:
        server.close()


def test_each_role_trains_as_its_own_user_and_no_secret_is_written_anywhere(
    guarded: Guarded, tmp_path: Path
) -> None:
    admin = guarded.admin
    arguments = ("train", *SLOW, "--run", RUN, "--actors", "1", "--total-steps", "4000", "--json")
    with Command(*arguments, cwd=tmp_path, environment=guarded.environment) as train:
        url, _ = train.how_to_join()
        join = ("actor", "--redis", url, "--run", RUN)
        with Command(*join, cwd=tmp_path, environment=guarded.environment) as actor:
            wait_until(lambda: int(admin.hget(KEYS.status, "actors") or 0) == 2, 45, "both actors train")
            wait_until(lambda: bool(admin.exists(KEYS.evaluation)), 30, "there is an evaluation")
            assert guarded.users().items() >= {
                (f"dppo-actor-{RUN}", "dppo-actor"),
                (f"dppo-learner-{RUN}", "dppo-learner"),
                (f"dppo-keeper-{RUN}", "dppo-learner"),
                (f"dppo-evaluator-{RUN}", "dppo-evaluator"),
                ("dppo-train", "dppo-operator"),
            }
            with Command("status", "--json", cwd=tmp_path, environment=guarded.environment) as status:
                assert status.wait(20) == ExitStatus.DONE
                assert status.summary()["run"] == RUN
            written = [train.out, train.err, actor.out, actor.err, str(train.command_lines())]
            assert train.wait(90) == ExitStatus.DONE, train.err
            assert actor.wait(20) == ExitStatus.DONE, actor.err
        summary = train.summary()
        written += [train.out, train.err]
        assert_nothing_left(train)
    assert_books_balance(summary["ledger"])
    assert not admin.exists(KEYS.rollouts)
    assert 0 < admin.ttl(KEYS.status) <= 7 * 24 * 3600
    assert admin.acl_log() == [], "somebody was refused a right"
    everything = [*(content.decode(errors="replace") for content in tree(tmp_path).values()), *written]
    assert [p for p in guarded.passwords if any(p in text for text in everything)] == []


@pytest.mark.parametrize(
    ("role", "command"),
    [(Role.ACTOR, "actor"), (Role.MONITOR, "status"), (Role.OPERATOR, "train CartPole-v1")],
)
def test_a_command_without_the_credentials_of_its_role_names_the_file(
    guarded: Guarded, tmp_path: Path, role: Role, command: str
) -> None:
    environment = {**guarded.environment, "DPPO_REDIS_CREDENTIALS": str(tmp_path)}
    with Command(*command.split(), "--run", "x", cwd=tmp_path, environment=environment) as refused:
        assert refused.wait(20) == ExitStatus.CONFIGURATION
        assert len(refused.error_lines) == 1
        assert str(tmp_path / role) in refused.error_lines[0]
