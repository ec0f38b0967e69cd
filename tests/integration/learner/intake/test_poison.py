"""Entries that kill the learner's process are found by their delivery counts and refused unopened."""

from typing import Any, cast

import pytest
import redis

from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import CONSUMER, GROUP, RunKeys
from dppo_redis.store.rollout_stream import RolloutConsumer
from learner.intake.intake import BLOCK_MS
from learner.leadership.leadership import Leadership
from tests.conftest import RedisServer, opened, wait_until
from tests.integration.learner.intake.test_intake_stream import quarantined, settle_trained
from tests.integration.learner_side import (
    Reader,
    add,
    in_background,
    lead,
    make_entry,
    make_reader,
    seqs,
)
from tests.integration.looking import blocked, imbalance, integer, ledger_of, pending
from tests.integration.store.test_stream import read_ids


@pytest.fixture
def leadership(client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    return lead(client, keys, stop)


def counts(client: Client, keys: RunKeys) -> list[int]:
    """Deliveries of what is pending, in order of arrival."""
    found = cast(list[Any], client.xpending_range(keys.rollouts, GROUP, min="-", max="+", count=100))
    return [entry["times_delivered"] for entry in found]


def dies_reading(client: Client, keys: RunKeys, leadership: Leadership) -> list[bytes]:
    """The entries that a process receives before it dies opening them."""
    consumer = RolloutConsumer(client, keys, leadership.bookkeeper.restore_stream)
    return [entry.id for entry in list(consumer.read(10, 1)) or list(consumer.read(10, 1))]


def test_each_process_that_dies_with_an_entry_in_hand_raises_its_count_by_one(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, make_entry())
    for deaths in range(1, 4):
        dies_reading(client, keys, leadership)
        assert counts(client, keys) == [deaths]


def test_an_entry_that_was_opened_unharmed_is_beyond_suspicion(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, make_entry())
    for _ in range(5):  # processes that opened it, and died of something else
        reader = make_reader(client, keys, leadership)
        reader.poll()
        reader.poll()
        assert counts(client, keys) == [1]


def flap(client: Client, consumer: RolloutConsumer, connection: int) -> None:
    """Cut the consumer's connection while it waits for new entries."""
    with in_background(lambda: list(consumer.read(10, BLOCK_MS)), StopRequest()) as reading:
        wait_until(lambda: blocked(client) == 1, 5, "the reader waits")
        client.client_kill_filter(_id=str(connection))
        with pytest.raises(redis.ConnectionError):
            reading.result(5)


def test_flaps_of_the_network_raise_no_count_and_cost_no_entry(
    redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, make_entry(seq=1))
    with opened(redis_server.url, "flapping") as flapping:
        reader = make_reader(flapping, keys, leadership)
        reader.poll()
        reader.poll()
        for _ in range(6):
            flap(client, reader.consumer, integer(flapping.client_id()))
            reader.poll()
            reader.poll()
    assert counts(client, keys) == [1]
    successor = make_reader(client, keys, leadership)
    add(client, keys, make_entry(seq=2))
    assert seqs(successor.poll_until(settled=2)) == [1, 2]


def test_a_flap_while_a_suspect_is_on_trial_is_not_a_death(
    redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    ids = add(client, keys, make_entry(seq=1))
    for _ in range(2):
        dies_reading(client, keys, leadership)
    with opened(redis_server.url, "flapping") as flapping:
        consumer = RolloutConsumer(flapping, keys, leadership.bookkeeper.restore_stream)
        assert [entry.deaths for entry in list(consumer.read(10, 1)) or list(consumer.read(10, 1))] == [2]
        for _ in range(3):
            flap(client, consumer, integer(flapping.client_id()))
            assert read_ids(consumer) == ids
            assert read_ids(consumer) == []
            assert counts(client, keys) == [3]
        consumer.survived()
    assert counts(client, keys) == [1]


def test_after_three_deaths_an_entry_is_refused_unopened_and_kept_for_inspection(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, make_entry(seq=1))
    for _ in range(3):
        dies_reading(client, keys, leadership)
    add(client, keys, make_entry(seq=2), make_entry(seq=3))
    reader = make_reader(client, keys, leadership)
    reader.intake._check_header = cast(Any, never)  # type: ignore[method-assign]
    reader.poll()
    del reader.intake._check_header
    settle_trained(reader, reader.poll_until(settled=3))
    assert ledger_of(client, keys) == {
        "refused": 1, "refused:poison": 1, "trained": 2, "steps:trained": 16,
    }  # fmt: skip
    assert [entry["reason"] for entry in quarantined(client, keys)] == [b"poison"]
    assert pending(client, keys) == 0
    assert imbalance(client, keys) == 0


def never(*_: object) -> None:
    raise AssertionError("it was opened")


def test_a_suspect_waits_until_there_is_nothing_else_and_is_opened_alone(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    suspects = add(client, keys, make_entry(seq=1), make_entry(seq=2))
    for _ in range(2):
        dies_reading(client, keys, leadership)
    fresh = add(client, keys, make_entry(seq=3), make_entry(seq=4))
    consumer = RolloutConsumer(client, keys, leadership.bookkeeper.restore_stream)
    read = []
    for _ in range(6):
        read.append([entry.id for entry in consumer.read(10, 1)])
        consumer.survived()
    assert read == [[], fresh, suspects[:1], suspects[1:], [], []]


def test_a_suspect_that_proves_good_is_trained_though_later_ones_of_its_actor_came_first(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, make_entry(seq=1))
    for _ in range(2):
        dies_reading(client, keys, leadership)
    add(client, keys, make_entry(seq=2), make_entry(seq=3))
    reader = make_reader(client, keys, leadership, batch_steps=3 * 8)
    settle_trained(reader, reader.poll_until(settled=3))
    add(client, keys, make_entry(seq=1))
    reader.poll_until(settled=4)
    assert ledger_of(client, keys)["trained"] == 3
    assert ledger_of(client, keys)["duplicate"] == 1


def test_only_our_own_consumer_has_anything_pending_afterwards(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    add(client, keys, make_entry())
    reader: Reader = make_reader(client, keys, leadership)
    reader.poll()
    reader.poll()
    make_reader(client, keys, leadership).poll()
    found = client.xpending(keys.rollouts, GROUP)
    assert [(c["name"], c["pending"]) for c in found["consumers"]] == [(CONSUMER.encode(), 1)]
