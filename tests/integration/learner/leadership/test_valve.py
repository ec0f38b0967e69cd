"""The valve: the learner bounds a stream that actors fill beyond the backlog limit."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dppo_redis.errors import FencedError
from dppo_redis.service.event_log import EventLog
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, TransientError
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from learner.leadership.leadership import Leadership
from tests.chaos.story import parse
from tests.conftest import memory_limit
from tests.integration.learner.intake.test_intake_stream import settle_trained
from tests.integration.learner_side import (
    add,
    lead,
    make_entry,
    make_keeper,
    make_reader,
    seqs,
    with_payload,
)
from tests.integration.looking import hash_of, imbalance, integer, ledger_of, pending

MIB = 2**20
LIMIT = 64 * MIB  # of a run with small rollouts


@pytest.fixture
def leadership(client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    return lead(client, keys, stop)


def fill(client: Client, keys: RunKeys, mib: int) -> list[bytes]:
    """Entries of one MiB."""
    payload = np.random.default_rng(0).bytes(MIB)
    return add(client, keys, *[with_payload(payload, seq=seq) for seq in range(1, mib + 1)])


def ids(client: Client, keys: RunKeys) -> list[bytes]:
    return [entry_id for entry_id, _ in cast(list[tuple[bytes, Any]], client.xrange(keys.rollouts))]


@pytest.mark.parametrize("full", [False, True], ids=["", "at the server's memory limit"])
def test_the_stream_is_bounded_in_bytes_the_newest_survive_and_each_loss_is_counted(
    client: Client, keys: RunKeys, leadership: Leadership, full: bool
) -> None:
    keeper = make_keeper(client, keys, leadership)
    pushed = fill(client, keys, 100)
    with memory_limit(client, limit=1 if full else 0):
        keeper.tick()
    kept = ids(client, keys)
    assert integer(client.memory_usage(keys.rollouts, samples=0)) <= LIMIT
    assert 25 <= len(kept) <= 32
    assert kept == pushed[-len(kept) :]
    lost = 100 - len(kept)
    assert ledger_of(client, keys) == {"lost": lost, "lost:valve": lost}
    assert imbalance(client, keys) == 0
    keeper.tick()
    assert ledger_of(client, keys) == {"lost": lost, "lost:valve": lost}
    status = hash_of(client, keys.status)
    assert (status["lost"], status["imbalance"], status["valve_bytes"]) == (str(lost), "0", str(LIMIT))
    assert 25 * MIB < int(status["stream_bytes"]) < LIMIT


def test_the_valve_drops_no_delivered_rollouts(client: Client, keys: RunKeys, leadership: Leadership) -> None:
    keeper = make_keeper(client, keys, leadership)
    reader = make_reader(client, keys, leadership)
    add(client, keys, make_entry(seq=1), make_entry(seq=2))
    reader.poll()
    batch = reader.poll() or []
    fill(client, keys, 70)
    keeper.tick()
    assert pending(client, keys) == 2
    assert ledger_of(client, keys)["lost:valve"] > 30
    settle_trained(reader, batch)
    keeper.tick()
    assert seqs(batch) == [1, 2]
    assert ledger_of(client, keys)["trained"] == 2
    assert imbalance(client, keys) == 0


def test_large_rollouts_of_actors_that_respect_the_backlog_limit_are_not_dropped(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    """Two rollouts of 40 MiB: above the limit in bytes, but no more of them than the mark allows."""
    add(client, keys, *[with_payload(bytes(40 * MIB), seq=seq) for seq in (1, 2)])
    make_keeper(client, keys, leadership).tick()
    assert integer(client.xlen(keys.rollouts)) == 2


def test_a_drop_whose_reply_was_lost_is_counted_once_as_what_it_was(
    client: Client, keys: RunKeys, leadership: Leadership, tmp_path: Path
) -> None:
    add(client, keys, *[make_entry(seq=seq) for seq in range(1, 6)])
    leadership.bookkeeper.audit()
    leadership.fence.event_log = EventLog(tmp_path / "learner.jsonl")
    trim = leadership.fence.writes.trim

    def unanswered(epoch: int, count: int) -> int:
        trim(epoch, count)
        raise TransientError("connection reset")

    leadership.fence.writes.trim = unanswered  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        leadership.bookkeeper.trim(2)
    leadership.bookkeeper.audit()
    leadership.fence.writes.trim = trim  # type: ignore[method-assign]
    assert leadership.bookkeeper.trim(1) == 1
    leadership.bookkeeper.audit()
    assert ledger_of(client, keys) == {"lost": 3, "lost:valve": 3}
    assert imbalance(client, keys) == 0
    told = list(parse((tmp_path / "learner.jsonl").read_text().splitlines()))
    assert [(e["event"], e["entries"]) for e in told] == [("trimming", 2), ("trimming", 1), ("trimmed", 1)]


@pytest.mark.parametrize("damage", ["a field that is no number", "another type"])
def test_a_drop_is_counted_though_the_ledger_is_damaged(
    client: Client, keys: RunKeys, leadership: Leadership, damage: str
) -> None:
    add(client, keys, *[make_entry(seq=seq) for seq in range(1, 6)])
    leadership.bookkeeper.audit()
    if damage == "another type":
        client.delete(keys.ledger)
        client.set(keys.ledger, "no hash")
    else:
        client.hset(keys.ledger, "lost:valve", "many")
    assert leadership.bookkeeper.trim(2) == 2
    leadership.publisher.remove_foreign_types()
    leadership.bookkeeper.audit()
    assert ledger_of(client, keys) == {"lost": 2, "lost:valve": 2}
    assert imbalance(client, keys) == 0


def test_where_there_is_no_stream_nothing_is_dropped(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    client.delete(keys.rollouts)
    assert leadership.bookkeeper.trim(2) == 0


def test_a_learner_that_was_overtaken_trims_nothing(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, with_payload(b"x"))
    client.incr(keys.epoch)
    with pytest.raises(FencedError):
        FencedWrites(client, keys).trim(leadership.fence.epoch, 1)
    assert integer(client.xlen(keys.rollouts)) == 1
