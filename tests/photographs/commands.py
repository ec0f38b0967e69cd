"""The commands that each process of a lock-step run sent to Redis, from lines of MONITOR. Pure.

Two views. *In order*: the commands that the plan of the run decides, word for word, payloads and weights by
their
digest. *Forms*: every command with numbers left out, as a set; that is all that can be said of what the
clock decides (looking for news, renewals, the keeper's rounds, the evaluator, the view).
"""

import hashlib
import re
from dataclasses import dataclass

_LINE = re.compile(r"\+[\d.]+ \[\d+ (\S+)\] (.*)")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SLOT = re.compile(r":actor:(\d+)$")
_LONG = 100  # characters; longer words are blobs
_RANDOM = re.compile(r"\d{13}-\d+|\d{10}\.\d+|[^:\s]+:\d+:[0-9a-f]{8}")  # entry ids, times, a lease's owner
_NUMBER = re.compile(r"-?\d*\.?\d+(e-?\d+)?|[0-9a-f]{64}|<.*>|")
# Fields whose values depend on the clock, or are random (boot).
_CLOCKED_FIELDS = frozenset(
    ("boot", "host", "pid", "train_s", "wait_s", "update_s", "evaluation_return", "evaluation_steps",
     "actors", "actor_wait_share", "stream_bytes", "entries_added", "backlog")
)  # fmt: skip
_CHANGING_FIELDS = frozenset(("state", "reason", "alarm", "dropped_by_actor", "last_error"))
# Commands whose number depends on the clock: (process, command, key or keys without the run's name).
_CLOCKED = frozenset(
    ("learner " + command)
    for command in (
        "HGETALL control", "HGETALL evaluation", "XREADGROUP rollouts", "EVALSHA lease epoch",
        "HSTRLEN weights", "HMGET weights", "HGET weights", "GET spec", "HGETALL boots", "HGET control",
        "EVALSHA rollouts ledger", "EVALSHA rollouts", "EVALSHA epoch status", "EVALSHA epoch control",
        "TYPE *", "CLIENT",
    )
) | frozenset(
    ("actor " + command)
    for command in (
        "GET spec", "XLEN rollouts", "HMGET weights epoch", "HMGET control", "PEXPIRE actor:*",
        "HSET actor:*", "ZADD actors",
    )
)  # fmt: skip
_ONLY_FORMS = ("train", "keeper", "evaluator")


@dataclass(frozen=True)
class Sent:
    """A command, with the commands of its script."""

    who: str
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """(process, command, keys), as `_CLOCKED` lists them."""
        command = self.words[0]
        keys = [word.split("}:", 1)[1] for word in self.words[: self._own] if word.startswith("dppo:{")]
        keys = [re.sub(r"^actor:\d+", "actor:*", key) for key in keys]
        if command == "TYPE":
            keys = ["*"]
        if keys == ["weights"] and self.who.startswith("actor"):
            keys += self.words[2:3]
        return " ".join([self.who.split()[0], command, *keys])

    @property
    def _own(self) -> int:
        return self.words.index("lua") if "lua" in self.words else len(self.words)

    def in_words(self) -> str:
        """The command word for word, with digests instead of blobs, and without times, ids and boots."""
        return " ".join(self._masked(_CLOCKED_FIELDS))

    def form(self) -> str:
        """The command without numbers, empty words and states."""
        words = self._masked(_CLOCKED_FIELDS | _CHANGING_FIELDS)
        if "best_return_mean" in words:  # whether a version is the best depends on the evaluated versions
            words = words[: words.index("best_return_mean")]
        return " ".join("#" if _NUMBER.fullmatch(word) else word for word in words)

    def _masked(self, fields: frozenset[str]) -> list[str]:
        pairs = zip(("", *self.words), self.words, strict=False)
        return ["#" if before in fields or _RANDOM.fullmatch(word) else word for before, word in pairs]


def read_monitor(lines: list[str]) -> list[Sent]:
    """All commands in order. Connections are identified by their client names."""
    found: list[tuple[str, list[str]]] = []
    names: dict[str, str] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        address, words = match[1], [_short(word) for word in _WORD.findall(match[2])]
        if address == "lua":
            found[-1][1].extend(("lua", *words))
            continue
        found.append((address, words))
        if words[:2] == ["CLIENT", "SETNAME"]:
            names[address] = words[2].removeprefix("dppo-").split("-")[0]
        for word in words:
            if names.get(address) == "actor" and (slot := _SLOT.search(word)):
                names[address] = f"actor {slot[1]}"
    return [Sent(names.get(address, "?"), tuple(words)) for address, words in found]


def _short(word: str) -> str:
    return word if len(word) < _LONG else f"<{hashlib.sha256(word.encode()).hexdigest()[:16]}>"


def in_order(sent: list[Sent], updates: int) -> dict[str, list[str]]:
    """For each process, the commands that the plan of the run decides, until the last update."""
    found: dict[str, list[str]] = {}
    for who in sorted({one.who for one in sent} - set(_ONLY_FORMS)):
        mine = [one for one in sent if one.who == who]
        begun = [one.kind for one in mine].index("learner XREADGROUP rollouts") if who == "learner" else 0
        # The keeper's first round comes before the learner's first read, so its commands are in order.
        kept = [one for at, one in enumerate(mine) if at < begun or one.kind not in _CLOCKED]
        found[who] = [one.in_words() for one in kept[: _end(kept, updates)]]
    return found


def _end(sent: list[Sent], updates: int) -> int | None:
    """The index after an actor's last rollout that an update used. The actor may have begun another
    rollout."""
    for at, one in enumerate(sent):
        if one.kind == "actor XADD rollouts" and f"update {updates - 1} " in " ".join(one.words):
            return at + 1
    return None


def forms(sent: list[Sent]) -> dict[str, list[str]]:
    """For each process, all forms of its commands."""
    return {
        who: sorted({one.form() for one in sent if one.who == who})
        for who in sorted({one.who for one in sent})
    }
