"""Builds the Redis ACL rules of each role: only the rights that the role's code needs. Pure.

The rules use selectors, because a selector grants commands on its own keys only. Without selectors, SET for
one key and write access to another key would allow SET on both. Redis 7.0 and Valkey read the same lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from dppo_redis.store.credentials import Role
from dppo_redis.store.keys import RUNS, RunKeys, in_every_run

_EVERY_ROLE = "ping client|setname select"
_KEYLESS = {
    Role.ACTOR: "",
    Role.EVALUATOR: "",
    Role.LEARNER: "info script|load time",
    Role.MONITOR: "scan info dbsize time",
    Role.OPERATOR: "scan info dbsize script|load time",
}
_ANY_RUN = RunKeys("any")


@dataclass(frozen=True)
class Grant:
    """Commands that a role may use on some keys, with reading access (R), writing access (W) or both."""

    commands: str
    access: str
    keys: tuple[str, ...]

    def text(self) -> str:
        """The selector in Redis's syntax."""
        return f"({_allowed(self.commands)} {' '.join(f'%{self.access}~{key}' for key in self.keys)})"


def _actor(keys: RunKeys) -> list[Grant]:
    return [
        Grant("get", "R", (keys.spec,)),
        Grant("hmget", "R", (keys.weights, keys.control)),
        Grant("hgetall", "R", (keys.control,)),
        Grant("xadd xlen", "W", (keys.rollouts,)),
        Grant("xadd", "W", (keys.errors,)),
        Grant("hincrby", "RW", (keys.boots,)),
        Grant("hset hget pexpire", "RW", (keys.every_actor,)),
        Grant("zadd zrem", "RW", (keys.actors,)),
    ]


def _evaluator(keys: RunKeys) -> list[Grant]:
    return [
        Grant("get", "R", (keys.spec,)),
        Grant("hmget", "R", (keys.weights,)),
        Grant("hgetall", "R", (keys.control, keys.evaluation)),
        Grant("hset", "W", (keys.evaluation,)),
        Grant("xadd", "W", (keys.metrics,)),
    ]


def _learner(keys: RunKeys) -> list[Grant]:
    reading = "get hget hmget hgetall hstrlen type exists pttl zrange xlen xrange xpending"
    reading += " xinfo|stream xinfo|groups memory|usage"
    writing = "set hset hincrby del unlink zrem xack xdel"
    writing += " xreadgroup xclaim xautoclaim xgroup|create xgroup|setid"
    return [
        Grant(f"evalsha {reading} {writing}", "RW", (keys.pattern,)),
        Grant("xadd", "W", (keys.metrics, keys.quarantine)),
    ]


def _monitor(keys: RunKeys) -> list[Grant]:
    small = "get hget hmget hgetall hkeys hlen strlen hstrlen type exists ttl pttl zrange zcard xlen"
    return [
        Grant(f"{small} xpending xinfo|groups", "R", (keys.pattern,)),
        Grant("xrange xrevrange", "R", (keys.metrics, keys.quarantine, keys.errors)),
    ]


def _operator(keys: RunKeys) -> list[Grant]:
    return [
        *_monitor(keys),
        Grant("evalsha xinfo|stream memory|usage", "RW", (keys.rollouts, keys.ledger)),
        Grant("hset", "W", (keys.control,)),
        Grant("del unlink persist expire", "RW", (keys.pattern,)),
    ]


_GRANTS = {
    Role.ACTOR: _actor,
    Role.EVALUATOR: _evaluator,
    Role.LEARNER: _learner,
    Role.MONITOR: _monitor,
    Role.OPERATOR: _operator,
}


_LIST_OF_RUNS: dict[Role, list[Grant]] = {
    Role.ACTOR: [],
    Role.EVALUATOR: [],
    Role.LEARNER: [Grant("zadd", "W", (RUNS,))],
    Role.MONITOR: [Grant("zrange", "R", (RUNS,))],
    Role.OPERATOR: [Grant("zrange", "R", (RUNS,)), Grant("zrem", "W", (RUNS,))],
}


def _allowed(commands: str) -> str:
    return " ".join(f"+{command}" for command in commands.split())


def rules_of(role: Role, run: str | None) -> str:
    """The rules of a role for one run, or for every run if `run` is None."""
    grants = _GRANTS[role](RunKeys(run) if run else _ANY_RUN)
    if run is None:
        grants = [Grant(g.commands, g.access, tuple(in_every_run(key) for key in g.keys)) for g in grants]
    grants += _LIST_OF_RUNS[role]
    keyless = _allowed(f"{_EVERY_ROLE} {_KEYLESS[role]}")
    return " ".join(["resetkeys resetchannels -@all", keyless, *(grant.text() for grant in grants)])


def user_line(name: str, password: str, rules: str) -> str:
    """A line of an ACL file; it holds the SHA-256 of the password, not the password."""
    return f"user {name} on #{sha256(password.encode()).hexdigest()} {rules}"


def acl_file(users: Sequence[tuple[Role, str, str]], admin: tuple[str, str], run: str | None) -> str:
    """The text of an ACL file for these users (role, name, password) and an administrator; it locks other
    users."""
    lines = ["user default off resetpass resetkeys resetchannels -@all"]
    lines += [user_line(name, password, rules_of(role, run)) for role, name, password in users]
    lines.append(user_line(*admin, "~* &* +@all"))
    return "\n".join(lines) + "\n"
