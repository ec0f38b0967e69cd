"""A checker that never fails proves nothing: with one guard taken out, the same attack must be noticed.

The services run in this process, on a real server behind the proxy. The attack provokes what each
guard is there for: a settle whose reply is lost, a rollout that comes twice, one that comes too late,
and a learner that is replaced without knowing it.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import tomli_w

from dppo_redis.errors import ExitStatus, FencedError
from dppo_redis.protocol.ledger import Outcome
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.service.event_log import EventLog
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store import scripts
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import RunStore
from learner.__main__ import _serve
from learner.intake.staleness import Verdict
from learner.leadership.leadership import Leadership, make_leadership
from tests.chaos.checker import check
from tests.chaos.proxy import Proxy
from tests.chaos.story import Event, imbalance, parse
from tests.conftest import RedisServer, opened, wait_until
from tests.factories import make_config, make_model
from tests.integration.actor_side import SLOT, make_actor
from tests.integration.learner.test_learner import config_of, description_of
from tests.integration.learner_side import in_background
from workers.build import build_collector

LIMIT = make_config(env_id="CartPole-v1").max_staleness
CONFIG = config_of(total_steps=10**9)
DESCRIPTION = description_of(CONFIG)
SETTLE = b"\r\ntrained\r\n$0\r\n"
DEADLINE_S = 30.0


@dataclass
class Attack:
    """A learner and an actor in threads, and the faults for them."""

    client: Client
    keys: RunKeys
    proxy: Proxy
    directory: Path
    learner: Future[ExitStatus]
    actor: Future[None]
    stop: StopRequest
    event_log: EventLog

    @property
    def update(self) -> int:
        return int(cast(Any, self.client.hget(self.keys.weights, "update")) or 0)

    def wait_for_updates(self) -> None:
        """Let the learner make some more updates."""
        target = self.update + 3
        wait_until(lambda: self.update >= target, DEADLINE_S, f"update {target}")

    def first_entry(self) -> dict[bytes, bytes]:
        """The first entry of the stream, unchanged."""

        def first() -> list[Any]:
            return cast(list[Any], self.client.xrange(self.keys.rollouts, count=1))

        found = first()
        while not found:
            assert not self.learner.done()
            found = first()
        return cast(dict[bytes, bytes], found[0][1])

    def add(self, entry: dict[bytes, bytes]) -> None:
        self.client.xadd(self.keys.rollouts, cast(Any, entry))

    def a_rollout_comes_twice(self) -> None:
        for _ in range(3):
            self.add(self.first_entry())
        self.wait_for_updates()

    def a_settle_loses_its_reply(self) -> None:
        self.proxy.lose_reply("learner", SETTLE)
        wait_until(lambda: self.proxy.replies_lost > 0, DEADLINE_S, "the reply is lost")
        store, target = RunStore(self.client, self.keys), self.update + 3
        while self.update < target:  # the keeper puts right what it finds: it must not be needed for that
            assert not self.learner.done()
            self.event_log.write("looked", imbalance=imbalance(store.counters()))

    def a_rollout_comes_too_late(self) -> None:
        entry = {**self.first_entry(), b"boot": secrets.token_hex(8).encode()}
        weights = {name: int(entry[name.encode()]) for name in ("epoch", "version", "update")}
        wait_until(lambda: self.update > weights["update"] + LIMIT + 1, DEADLINE_S, "it is too old")
        boot, seq = entry[b"boot"].decode(), int(entry[b"seq"])
        self.event_log.write("injected", boot=boot, seq=seq, **weights)
        self.add(entry)
        self.wait_for_updates()

    def another_learner_takes_over(self) -> Leadership:
        """Let another learner lead, as if this learner's lease had expired unnoticed."""
        event_log = EventLog(self.directory / "second.jsonl", "learner")
        second = make_leadership(self.client, self.keys, DESCRIPTION, "second", self.stop, event_log)
        pipeline = self.client.pipeline()
        pipeline.delete(self.keys.lease)
        pipeline.incr(self.keys.epoch)
        epoch = pipeline.execute()[1]
        second.lease.acquire(known_epoch=epoch, update=self.update)
        arrays = make_model(DESCRIPTION.spec).acting_arrays()
        second.publisher.publish(arrays, self.update, trained_steps=0, settled_steps=0)
        return second

    def end_and_record(self, second: Leadership) -> None:
        """Let the first learner run on for a while, then end all threads and record the ledger."""
        target = self.update + 3
        wait_until(lambda: self.learner.done() or self.update >= target, DEADLINE_S, "the first one ends")
        self.stop.request()
        self.actor.exception(DEADLINE_S)
        assert isinstance(self.learner.exception(DEADLINE_S), FencedError | None)
        balance = second.bookkeeper.audit()
        entries = [
            (entry_id, fields[b"boot"], fields[b"seq"])
            for entry_id, fields in cast(Any, self.client.xrange(self.keys.rollouts))
        ]
        ledger = {outcome.value: second.bookkeeper.ledger_audit.ledger.of(outcome) for outcome in Outcome}
        self.event_log.write(
            "final", ledger=ledger, entries=entries, entries_added=balance.entries_added,
            backlog=balance.backlog, imbalance=balance.imbalance,
        )  # fmt: skip


@contextmanager
def attack(server: RedisServer, directory: Path) -> Iterator[Attack]:
    """A learner behind the proxy, and an actor that reaches the server directly."""
    keys = RunKeys("mutated")
    values = CONFIG.model_dump(exclude_none=True, mode="json")
    (directory / "config.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    stop = StopRequest()
    with ExitStack() as stack:
        client = stack.enter_context(opened(server.url))
        mine = stack.enter_context(opened(server.url, "actor"))
        proxy = stack.enter_context(Proxy(server.url.removeprefix("unix://")))
        argv = ["--run", keys.run, "--run-dir", str(directory), "--redis", proxy.url]
        argv += ["--event-log", str(directory / "learner.jsonl")]
        learner = stack.enter_context(in_background(lambda: _serve(argv, stop), stop))
        actor = make_actor(mine, keys, stop, partial(build_collector, DESCRIPTION, None, SLOT), DESCRIPTION)
        event_log = EventLog(directory / "actor.jsonl", "actor")
        access = replace(actor.access, producer=RolloutProducer(mine, keys, stop, event_log))
        actor = replace(actor, access=access, event_log=event_log)
        acting = stack.enter_context(in_background(actor.run, stop))
        injector = EventLog(directory / "injector.jsonl", "injector")
        yield Attack(client, keys, proxy, directory, learner, acting, stop, injector)


def verdict_of_an_attack(server: RedisServer, directory: Path) -> list[str]:
    """The checker's sentences after all faults of this module."""
    with attack(server, directory) as attacked:
        attacked.wait_for_updates()
        attacked.a_rollout_comes_twice()
        attacked.a_settle_loses_its_reply()
        attacked.a_rollout_comes_too_late()
        second = attacked.another_learner_takes_over()
        attacked.end_and_record(second)
    events: list[Event] = []
    for file in directory.glob("*.jsonl"):
        events += parse(file.read_text().splitlines())
    return check(events, LIMIT)


def test_the_attack_is_survived_when_every_guard_is_in_place(
    private_server: RedisServer, tmp_path: Path
) -> None:
    assert verdict_of_an_attack(private_server, tmp_path) == []


def _without(name: str, *guards: tuple[str, str]) -> str:
    """The text of a script without one of its guards."""
    text = scripts.source(name)
    for guard, nothing in guards:
        assert guard in text
        text = text.replace(guard, nothing)
    return text


Unused = set[str]  # mutants that have not been in the place of what they replace; it empties as they are


def _no_settle_guard(monkeypatch: pytest.MonkeyPatch) -> Unused:
    text = _without("settle", ("if removed == 1 then", "if true then"))
    return _replace_scripts(monkeypatch, {"settle": text})


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> Unused:
    fence = ("if epoch ~= ARGV[1] then", "if false then")
    texts = {name: _without(name, fence) for name in ("publish", "settle", "write")}
    texts["acquire"] = _without(
        "acquire",
        ("if holder and holder ~= owner then", "if false then"),
        ("if mine > 0 and epoch > mine then", "if false then"),
        ("if mine > 0 and epoch == mine then", "if mine > 0 then"),
    )
    return _replace_scripts(monkeypatch, texts)


def _replace_scripts(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> Unused:
    sound, unused = scripts.source, set(texts)

    def source(name: str) -> str:
        unused.discard(name)
        return texts.get(name) or sound(name)

    monkeypatch.setattr("dppo_redis.store.fenced_writes.source", source)
    return unused


def _no_duplicate_mark(monkeypatch: pytest.MonkeyPatch) -> Unused:
    unused = {"is_duplicate"}

    def is_duplicate(*_: Any) -> bool:
        unused.discard("is_duplicate")
        return False

    monkeypatch.setattr(LastSequenceNumbers, "is_duplicate", is_duplicate)
    return unused


def _no_staleness_check(monkeypatch: pytest.MonkeyPatch) -> Unused:
    unused = {"judge"}

    def judge(*_: Any, **__: Any) -> Verdict:
        unused.discard("judge")
        return Verdict.FRESH

    monkeypatch.setattr("learner.intake.intake.judge", judge)
    return unused


@pytest.mark.parametrize(
    ("mutate", "sentence"),
    [
        (_no_settle_guard, r"waiting was -\d+ at a look"),
        (_no_fence, "was published after a later epoch had begun"),
        (_no_duplicate_mark, r"was trained \d times"),
        (_no_staleness_check, f"updates old, limit {LIMIT}"),
    ],
)
def test_without_a_guard_the_checker_names_what_went_wrong(
    private_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], Unused],
    sentence: str,
) -> None:
    unused = mutate(monkeypatch)
    assert re.search(sentence, "\n".join(verdict_of_an_attack(private_server, tmp_path)))
    assert unused == set(), "a mutant that nothing uses proves nothing"
