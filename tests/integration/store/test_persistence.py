"""What each persistence profile loses: a row of the table in ops/README.md each, on both servers.

A power loss is emulated by cutting the end of the log: kill -9 alone leaves it in the kernel's hands.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import PAUSE, RunStore
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import Leadership
from tests.conftest import SERVERS, RedisServer, opened, wait_until
from tests.factories import make_header
from tests.integration.learner_side import (
    SPEC,
    STEPS,
    add,
    lead,
    make_entry,
    make_keeper,
    make_reader,
    publish,
)
from tests.integration.looking import imbalance, ledger_of, version_of

BOOT = "00000000000000b2"


@dataclass
class Run:
    """A learner with three rollouts waiting, on a server that is about to go."""

    server: RedisServer
    client: Client
    keys: RunKeys
    leadership: Leadership
    keeper: Keeper

    def add(self, *seqs: int) -> list[bytes]:
        return add(self.client, self.keys, *[make_entry(seq=seq, boot=BOOT) for seq in seqs])

    def continue_training(self) -> None:
        """Settle the first rollout, add four more, publish: an interruption may undo this."""
        ((first, _),) = cast(Any, self.client.xrange(self.keys.rollouts, count=1))
        self.leadership.bookkeeper.settle([Settlement(first, Outcome.TRAINED, steps=STEPS)])
        self.add(4, 5, 6, 7)
        publish(self.leadership, update=1)
        self.keeper.tick()

    def come_back(self) -> None:
        """Start the server again, and let the keeper look twice."""
        self.server.start()
        RetryLoop(StopRequest()).call("reconnect", self.client.ping)
        self.keeper.tick()
        self.keeper.tick()

    @property
    def log(self) -> Path:
        (log,) = (self.server.directory / "appendonlydir").glob("*.incr.aof")
        return log

    def losses(self) -> dict[str, int]:
        ledger = ledger_of(self.client, self.keys)
        return {name: n for name, n in ledger.items() if name.startswith(("lost:", "duplicate"))}

    @property
    def metrics(self) -> int:
        return int(self.client.xlen(self.keys.metrics))

    @property
    def backlog(self) -> int:
        return int(self.client.xlen(self.keys.rollouts))


@pytest.fixture(params=list(SERVERS.values()), ids=list(SERVERS))
def binary(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(binary: str, profile: str, keys: RunKeys, stop: StopRequest) -> Iterator[Run]:
    server = RedisServer(binary, profile=profile)
    try:
        server.start()
        with opened(server.url) as client:
            leadership = lead(client, keys, stop)
            run = Run(server, client, keys, leadership, make_keeper(client, keys, leadership))
            run.add(1, 2, 3)
            RunStore(client, keys).append_metrics({"kind": "update"})
            run.keeper.tick()
            yield run
    finally:
        server.close()


def save(run: Run) -> None:
    """Take a snapshot, as the server does by itself every ten seconds."""
    before = run.client.info("persistence")["rdb_last_save_time"]
    run.client.config_set("save", "1 1")
    run.client.set("changed", "1")
    wait_until(
        lambda: run.client.info("persistence")["rdb_last_save_time"] > before, 20, "a snapshot is taken"
    )
    run.client.config_set("save", "")


@pytest.mark.parametrize("profile", ["none"], indirect=True)
def test_without_persistence_a_restart_loses_what_waited_and_nothing_of_the_run(run: Run) -> None:
    RunStore(run.client, run.keys).set_state(PAUSE)
    run.continue_training()
    version = version_of(run.client, run.keys)
    run.server.kill()
    run.come_back()
    assert version_of(run.client, run.keys) > version
    assert (run.losses(), run.metrics) == ({"lost:reset": 6}, 0)
    assert imbalance(run.client, run.keys) == 0
    assert RunStore(run.client, run.keys).control().state == PAUSE


@pytest.mark.parametrize("profile", ["durable"], indirect=True)
def test_a_log_loses_nothing_when_the_server_is_killed(run: Run) -> None:
    run.continue_training()
    version = version_of(run.client, run.keys)
    run.server.kill()
    run.come_back()
    assert version_of(run.client, run.keys) == version
    assert (run.losses(), run.backlog, run.metrics) == ({}, 6, 1)
    assert imbalance(run.client, run.keys) == 0


@pytest.mark.parametrize("profile", ["durable"], indirect=True)
def test_a_power_loss_removes_the_end_of_the_log_and_the_ledger_counts_the_loss(run: Run) -> None:
    flushed = run.log.stat().st_size
    run.continue_training()
    version = version_of(run.client, run.keys)
    run.server.kill()
    with run.log.open("r+b") as log:
        log.truncate(flushed + 5)  # in the middle of a command
    run.come_back()
    assert_rolled_back(run, version)


@pytest.mark.parametrize("profile", ["split"], indirect=True)
def test_a_restored_snapshot_loses_later_entries_and_the_ledger_counts_the_loss(run: Run) -> None:
    assert run.client.config_get("save") == {"save": "10 1"}
    save(run)
    run.continue_training()
    version = version_of(run.client, run.keys)
    run.server.kill()
    run.come_back()
    assert_rolled_back(run, version)


def assert_rolled_back(run: Run, version: int) -> None:
    """Three rollouts wait again, one of which was trained on; four others are gone."""
    assert version_of(run.client, run.keys) > version
    assert (run.backlog, run.metrics) == (3, 1)
    assert run.losses() == {"lost:rolled_back": 3}
    assert imbalance(run.client, run.keys) == 0
    reader = make_reader(run.client, run.keys, run.leadership, batch_steps=2 * STEPS)
    reader.intake.last_sequence_numbers.take(make_header(SPEC, seq=1, boot=BOOT))
    reader.poll_until(settled=7, update=1)
    run.keeper.tick()
    assert run.losses() == {"lost:rolled_back": 3, "duplicate": 1}
    assert imbalance(run.client, run.keys) == 0


@pytest.mark.parametrize("profile", ["split", "durable"], indirect=True)
def test_only_a_log_holds_the_rollouts_that_were_settled(run: Run, profile: str) -> None:
    for entry_id in run.add(*range(4, 204)):
        run.leadership.bookkeeper.settle([Settlement(entry_id, Outcome.TRAINED, steps=STEPS)])
    sent = 200 * len(make_entry()["payload"])
    if profile == "split":
        save(run)
    disk = sum(file.stat().st_size for file in run.server.directory.rglob("*") if file.is_file())
    assert (disk > sent) is (profile == "durable")
