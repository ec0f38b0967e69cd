"""The rights of each role on a real server, by ACL DRYRUN and by real commands."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from dppo_redis.protocol.reports import ActorReport
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.address import with_credentials
from dppo_redis.store.client import Client
from dppo_redis.store.credentials import Role, read_credentials
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from ops.commands.acl import ACL_FILE, ADMIN, make_users
from tests.conftest import SERVERS, RedisServer, opened
from tests.integration.learner_side import lead, make_entry, make_keeper

RUN = "mine"
KEYS = {
    name: getattr(RunKeys(RUN), name)
    for name in (
        *("spec", "weights", "rollouts", "lease", "epoch", "ledger", "boots", "actors", "status"),
        *("evaluation", "metrics", "quarantine", "errors", "control"),
    )
} | {"mine": RunKeys(RUN).actor(3), "other": RunKeys("other").rollouts}  # fmt: skip

ALLOWED = {
    Role.ACTOR: [
        "PING",
        "CLIENT SETNAME x",
        "GET spec",
        "HMGET weights epoch version",
        "HMGET weights blob sha256",
        "HMGET control state",
        "HGETALL control",
        "XADD rollouts NOMKSTREAM * a b",
        "XLEN rollouts",
        "XADD errors MAXLEN ~ 200 * a b",
        "HINCRBY boots 3 1",
        "HSET mine boot 1",
        "HGET mine boot",
        "PEXPIRE mine 10000",
        "PEXPIRE mine 0",
        "ZADD actors 1 3",
        "ZREM actors 3",
        "XADD other NOMKSTREAM * a b",  # users are for every run, unless made for one
    ],
    Role.EVALUATOR: [
        "GET spec",
        "HMGET weights blob sha256",
        "HGETALL control",
        "HGETALL evaluation",
        "HSET evaluation version 1",
        "XADD metrics MAXLEN ~ 10 * a b",
    ],
    Role.LEARNER: [
        "EVALSHA " + "0" * 40 + " 2 lease epoch",
        "SCRIPT LOAD return",
        "XREADGROUP GROUP learners learner COUNT 1 STREAMS rollouts >",
        "XACK rollouts learners 1-1",
        "XDEL rollouts 1-1",
        "XGROUP CREATE rollouts learners 0 MKSTREAM",
        "XAUTOCLAIM rollouts learners learner 0 0-0",
        "XADD quarantine * a b",
        "XADD metrics * a b",
        "SET spec x",
        "HSET weights version 1",
        "UNLINK weights",
        "ZREM actors 3",
        "ZADD dppo:runs 1 mine",
        "TIME",
    ],
    Role.MONITOR: [
        "INFO",
        "SCAN 0",
        "HGETALL status",
        "HGETALL ledger",
        "HKEYS boots",
        "HMGET weights version",
        "ZRANGE actors 0 -1",
        "HGETALL mine",
        "XLEN rollouts",
        "XREVRANGE metrics + - COUNT 5",
        "XREVRANGE quarantine + - COUNT 3",
        "GET lease",
        "PTTL lease",
        "XINFO GROUPS rollouts",
        "ZRANGE dppo:runs 0 -1",
        "TIME",
    ],
    Role.OPERATOR: [
        "INFO",
        "SCAN 0",
        "HSET control state pause",
        "UNLINK rollouts",
        "PERSIST status",
        "EXPIRE status 100",
        "GET lease",
        "XINFO STREAM rollouts",
        "EVALSHA " + "0" * 40 + " 2 rollouts ledger",
        "HGETALL status",
        "ZRANGE dppo:runs 0 -1",
        "ZREM dppo:runs mine",
    ],
}
DENIED = {
    Role.ACTOR: [
        "XREADGROUP GROUP learners learner COUNT 1 STREAMS rollouts >",
        "XREAD COUNT 1 STREAMS rollouts 0",
        "XRANGE rollouts - +",
        "XINFO STREAM rollouts",
        "XACK rollouts learners 1-1",
        "XDEL rollouts 1-1",
        "XTRIM rollouts MAXLEN 0",
        "XGROUP DESTROY rollouts learners",
        "SET rollouts x",
        "HSET weights blob x",
        "HSET control state stop",
        "HSET ledger trained 1",
        "HSET boots 3 1",
        "SET spec x",
        "SET lease x",
        "INCR epoch",
        "DEL mine",
        "UNLINK mine",
        "DEL weights",
        "EXPIRE rollouts 1",
        "PEXPIRE weights 0",
        "RENAME mine weights",
        "COPY weights mine",
        "RESTORE mine 0 x",
        "EVAL return 0",
        "EVALSHA " + "0" * 40 + " 1 mine",
        "FCALL f 0",
        "SCRIPT LOAD return",
        "FUNCTION LIST",
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "SCAN 0",
        "CONFIG GET *",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal",
        "SUBSCRIBE x",
        "MONITOR",
        "ACL LIST",
        "SHUTDOWN NOSAVE",
        "REPLICAOF NO ONE",
    ],
    Role.EVALUATOR: [
        "XADD rollouts * a b",
        "XRANGE rollouts - +",
        "HSET weights blob x",
        "HSET control state stop",
        "HSET status a b",
        "DEL evaluation",
        "SCRIPT LOAD return",
        "FLUSHALL",
    ],
    Role.LEARNER: [
        "XADD rollouts * a b",
        "XREADGROUP GROUP learners learner COUNT 1 STREAMS foreign >",
        "SET foreign x",
        "DEL foreign",
        "EVALSHA " + "0" * 40 + " 1 foreign",
        "EVAL return 0",
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG SET maxmemory 1",
        "ACL SETUSER x",
        "KEYS *",
        "SHUTDOWN NOSAVE",
    ],
    Role.MONITOR: [
        "HSET control state stop",
        "XRANGE rollouts - +",
        "XADD rollouts * a b",
        "DEL quarantine",
        "GET foreign",
        "FLUSHDB",
        "MONITOR",
        "CONFIG GET *",
        "EVALSHA " + "0" * 40 + " 1 ledger",
    ],
    Role.OPERATOR: [
        "HSET weights blob x",
        "XADD rollouts * a b",
        "XRANGE rollouts - +",
        "UNLINK foreign",
        "FLUSHALL",
        "CONFIG SET maxmemory 1",
        "ACL SETUSER x",
        "EVAL return 0",
    ],
}


def words(line: str) -> list[str]:
    """The command, its key names replaced by those of the run; `foreign` is a key of somebody else."""
    return [KEYS.get(word, word) for word in line.split()]


class Guarded:
    """A server with the users that `dppo-redis acl` makes."""

    def __init__(self, binary: str, directory: Path, run: str | None = None) -> None:
        make_users(directory, run)
        self._directory = directory
        self._server = RedisServer(binary, "--aclfile", str(directory / ACL_FILE))

    def __enter__(self) -> "Guarded":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def url(self, role: str) -> str:
        return with_credentials(self._server.url, *read_credentials(self._directory / role))

    def user(self, role: Role) -> str:
        return read_credentials(self._directory / role)[0]


@pytest.fixture(scope="module", params=list(SERVERS.values()), ids=list(SERVERS))
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(request.param, tmp_path_factory.mktemp("acl")) as server:
        yield server


def would_be_allowed(guarded: Guarded, role: Role, line: str) -> bool:
    with opened(guarded.url(ADMIN)) as admin:
        answer = cast(Any, admin).execute_command("ACL", "DRYRUN", guarded.user(role), *words(line))
    return bool(answer in (b"OK", "OK", True))


def is_allowed(guarded: Guarded, role: Role, line: str) -> bool:
    """Whether a server executes a command, or refuses it for a reason other than the user's rights."""
    with opened(guarded.url(role)) as client, opened(guarded.url(ADMIN)) as admin:
        admin.flushall()
        try:
            cast(Any, client).execute_command(*words(line))
        except redis.exceptions.NoPermissionError:
            return False
        except redis.ResponseError:
            return True
    return True


PAIRS = [(role, line, True) for role, lines in ALLOWED.items() for line in lines] + [
    (role, line, False) for role, lines in DENIED.items() for line in lines
]


@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_do_what_it_needs_and_nothing_else(guarded: Guarded, role: Role) -> None:
    found = [
        (line, would_be_allowed(guarded, role, line), is_allowed(guarded, role, line))
        for owner, line, _ in PAIRS
        if owner is role
    ]
    assert found == [(line, expected, expected) for owner, line, expected in PAIRS if owner is role]


def test_the_default_user_is_refused(guarded: Guarded) -> None:
    with opened(guarded.url(ADMIN)) as admin:
        server = with_credentials(guarded.url(ADMIN), "default", "")
        assert admin.ping()
    with opened(server) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_users_made_for_one_run_reach_no_other(tmp_path: Path) -> None:
    with Guarded(next(iter(SERVERS.values())), tmp_path / "acl", RUN) as guarded:
        assert is_allowed(guarded, Role.ACTOR, "XADD rollouts NOMKSTREAM * a b")
        assert not is_allowed(guarded, Role.ACTOR, "XADD other NOMKSTREAM * a b")
        assert not is_allowed(guarded, Role.LEARNER, "XDEL other 1-1")


def test_credentials_that_are_there_are_kept_and_none_is_in_the_servers_file(tmp_path: Path) -> None:
    make_users(tmp_path, None)
    before = {role: read_credentials(tmp_path / role) for role in (*Role, ADMIN)}
    make_users(tmp_path, "another")
    assert {role: read_credentials(tmp_path / role) for role in (*Role, ADMIN)} == before
    text = (tmp_path / ACL_FILE).read_text()
    assert all(user in text and password not in text for user, password in before.values())


def test_an_actor_ends_its_own_registration_and_mends_its_key(
    guarded: Guarded, keys: RunKeys, stop: StopRequest
) -> None:
    assert not stop.requested
    with opened(guarded.url(ADMIN)) as admin, opened(guarded.url(Role.ACTOR)) as client:
        admin.flushall()
        registry = Registry(client, keys)
        slot, boot = registry.join(3)
        admin.set(keys.actor(slot), "overwritten")
        registry.beat(slot, ActorReport(boot=boot))
        registry.beat(slot, ActorReport(boot=boot))
        assert list(Registry(admin, keys).living()) == [slot]
        registry.leave(slot, boot)
        assert Registry(admin, keys).living() == {}
        assert not admin.exists(keys.actor(slot), keys.actors)


def test_the_ledger_shows_damage_that_an_actors_rights_cannot_prevent(
    guarded: Guarded, keys: RunKeys, stop: StopRequest
) -> None:
    """XADD may trim: a right belongs to a command, not to its arguments."""
    with opened(guarded.url(ADMIN)) as admin, opened(guarded.url(Role.ACTOR)) as actor:
        admin.flushall()
        with opened(guarded.url(Role.LEARNER)) as learner:
            leadership = lead(learner, keys, stop)
            keeper = make_keeper(learner, keys, leadership)
            push(actor, keys, 5)
            keeper.tick()
            actor.xadd(keys.rollouts, make_entry(), maxlen=1, approximate=False, nomkstream=True)
            keeper.tick()
            keeper.tick()
            ledger, status = learner.hgetall(keys.ledger), learner.hgetall(keys.status)
    assert ledger == {b"lost": b"5", b"lost:unexplained": b"5"}
    assert (status[b"entries_added"], status[b"backlog"], status[b"imbalance"]) == (b"6", b"1", b"0")


def push(client: Client, keys: RunKeys, count: int) -> None:
    for _ in range(count):
        client.xadd(keys.rollouts, make_entry(), nomkstream=True)
