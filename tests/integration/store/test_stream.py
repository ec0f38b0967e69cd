"""Rollouts go from a producer to a consumer, also after the loss of stream, group or server."""

import time
import tracemalloc
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import redis

from dppo_redis.errors import ConfigurationError, StoppedError
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.weights import WeightsId
from dppo_redis.protocol.wire import checksum, decode_rollout, encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import SOCKET_TIMEOUT_S, TRUSTED_S, Client
from dppo_redis.store.keys import CONSUMER, GROUP, RunKeys
from dppo_redis.store.rollout_stream import (
    RolloutConsumer,
    RolloutProducer,
    StreamEntry,
    ensure_group,
    parse_header,
)
from learner.intake.intake import BLOCK_MS
from tests.conftest import RedisServer, memory_limit, opened, wait_until
from tests.factories import make_header, make_rollout, make_spec
from tests.integration.learner_side import add, in_background, lead, make_entry, make_reader, seqs
from tests.integration.looking import blocked, commands, integer, ledger_of, pending

SPEC = make_spec()


def make_consumer(client: Client, keys: RunKeys) -> RolloutConsumer:
    ensure_group(client, keys)
    return RolloutConsumer(client, keys, lambda: restore(client, keys))


def restore(client: Client, keys: RunKeys) -> None:
    ensure_group(client, keys)


def disconnect(client: Client, name: str) -> None:
    for other in client.client_list():
        if other["name"] == name:
            client.client_kill_filter(_id=other["id"])


def read_ids(consumer: RolloutConsumer, count: int = 100) -> list[bytes]:
    return [entry.id for entry in consumer.read(count, block_ms=1)]


def read_new(consumer: RolloutConsumer, count: int = 100) -> list[StreamEntry]:
    """Entries of the next read after the consumer has found that nothing of its own is pending."""
    assert list(consumer.read(count, block_ms=1)) == []
    return list(consumer.read(count, block_ms=1000))


def assert_equal(mine: Rollout, theirs: Rollout) -> None:
    for field in fields(Rollout):
        np.testing.assert_array_equal(getattr(mine, field.name), getattr(theirs, field.name))


class TestPushing:
    def test_a_rollout_arrives_as_it_was_sent(self, client: Client, keys: RunKeys, stop: StopRequest) -> None:
        consumer = make_consumer(client, keys)
        rollout = make_rollout(SPEC, terminated=[(1, 0)], truncated=[(3, 1)])
        payload = encode_rollout(rollout)
        header = make_header(SPEC, seq=3, version=2**40, steps=rollout.steps, crc=checksum(payload))
        RolloutProducer(client, keys, stop).push(header, payload)
        (entry,) = read_new(consumer)
        assert parse_header(entry) == header
        assert_equal(decode_rollout(entry.fields[b"payload"], SPEC), rollout)

    def test_a_push_copies_nothing_of_a_large_payload(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        consumer, producer = make_consumer(client, keys), RolloutProducer(client, keys, stop)
        payload = np.random.default_rng(0).bytes(4 * 2**20)  # more than one system call takes
        tracemalloc.start()
        try:
            producer.push(make_header(SPEC), payload)
            assert tracemalloc.get_traced_memory()[1] < 2 * 2**20  # the connection's buffer is the most
        finally:
            tracemalloc.stop()
        (entry,) = read_new(consumer)
        assert entry.fields[b"payload"] == payload

    def test_a_push_also_answers_backlog_weights_and_control(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(client, keys, stop)
        client.hset(keys.control, mapping={"state": "pause", "backlog_high": "9"})
        producer = RolloutProducer(client, keys, stop)
        snapshot = producer.push(make_header(SPEC), b"x")
        assert snapshot is not None
        assert snapshot.backlog == 1
        assert snapshot.weights == WeightsId(epoch=1, version=1)
        assert (snapshot.state, snapshot.backlog_high) == ("pause", 9)
        assert producer.read_pacing() == snapshot

    def test_a_producer_reads_a_run_without_keys_as_one_without_a_learner(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        snapshot = RolloutProducer(client, keys, stop).read_pacing()
        assert (snapshot.backlog, snapshot.weights, snapshot.state) == (0, None, "run")

    def test_a_push_waits_until_the_learner_has_made_the_stream(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        client.config_resetstat()
        producer = RolloutProducer(client, keys, stop)
        with in_background(lambda: producer.push(make_header(SPEC), b"x"), stop) as pushing:
            wait_until(lambda: commands(client, "xadd") > 2, 5, "the push was tried three times")
            assert client.exists(keys.rollouts) == 0
            ensure_group(client, keys)
            snapshot = pushing.result(5)
        assert snapshot is not None
        assert snapshot.backlog == 1
        assert client.xlen(keys.rollouts) == 1

    def test_a_full_server_is_waited_for_and_counted(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        ensure_group(client, keys)
        producer = RolloutProducer(client, keys, stop)
        with in_background(lambda: producer.push(make_header(SPEC), b"x"), stop) as pushing:
            with memory_limit(client):
                wait_until(lambda: producer.refused_full > 0 or pushing.done(), 5, "the push is refused")
            snapshot = pushing.result(5)
        assert snapshot is not None
        assert snapshot.backlog == 1

    def test_a_push_that_waits_ends_when_a_stop_is_asked_for(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        producer = RolloutProducer(client, keys, stop)
        with in_background(lambda: producer.push(make_header(SPEC), b"x"), stop) as pushing:
            stop.request()
            with pytest.raises(StoppedError):
                pushing.result(2)

    def test_a_rollout_whose_reply_was_lost_is_sent_again_and_trained_once(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = lead(private_client, keys, stop)
        entry = make_entry(seq=1)
        with opened(private_server.url, "actor") as client:
            producer = RolloutProducer(client, keys, stop)
            producer.read_pacing()  # connected before the server freezes
            header = parse_header(as_read(entry))
            private_server.freeze()
            with in_background(lambda: producer.push(header, entry["payload"]), stop) as pushing:
                wait_until(lambda: producer.ambiguous > 0, 15, "the actor gives the reply up")
                private_server.thaw()
                pushing.result(20)
        add(private_client, keys, make_entry(seq=2))
        assert private_client.xlen(keys.rollouts) == 3
        batch = make_reader(private_client, keys, leadership).poll_until(settled=3)
        assert seqs(batch) == [1, 2]
        assert ledger_of(private_client, keys)["duplicate"] == 1

    def test_a_connection_that_was_closed_between_two_pushes_is_made_again(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        ensure_group(client, keys)
        with opened(redis_server.url, f"actor-{keys.run}") as actor:
            producer = RolloutProducer(actor, keys, stop)
            for seq in (1, 2):
                producer.push(make_header(SPEC, seq=seq), b"x")
                disconnect(client, f"actor-{keys.run}")
            assert producer.ambiguous == 1  # it may have been taken
            ended = time.monotonic()
            wait_until(lambda: time.monotonic() - ended > TRUSTED_S, 5, "the actor has sampled for a while")
            producer.push(make_header(SPEC, seq=3), b"x")
        assert producer.ambiguous == 1
        assert client.xlen(keys.rollouts) == 3

    def test_a_rollout_larger_than_the_server_accepts_is_not_sent_for_ever(
        self, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        ensure_group(private_client, keys)
        private_client.config_set("proto-max-bulk-len", "1mb")
        producer = RolloutProducer(private_client, keys, stop)
        with in_background(lambda: producer.push(make_header(SPEC), bytes(2**21)), stop) as pushing:
            assert isinstance(pushing.exception(10), ConfigurationError)
            assert "of 2097152 bytes" in str(pushing.exception())


class TestReading:
    def test_entries_read_before_a_restart_come_first_and_in_order(
        self, client: Client, keys: RunKeys
    ) -> None:
        consumer = make_consumer(client, keys)
        ids = add(client, keys, *[make_entry(seq=seq) for seq in range(1, 6)])
        assert [entry.id for entry in read_new(consumer, count=3)] == ids[:3]
        again = make_consumer(client, keys)
        assert read_ids(again, 2) == ids[:2]
        assert read_ids(again, 2) == ids[2:3]
        assert read_ids(again) == []
        assert read_ids(again) == ids[3:]

    def test_entries_pending_at_another_consumer_are_claimed(self, client: Client, keys: RunKeys) -> None:
        consumer = make_consumer(client, keys)
        ids = add(client, keys, *[make_entry(seq=seq) for seq in range(1, 251)])
        client.xreadgroup(GROUP, "other", {keys.rollouts: ">"})
        consumer.claim_all()
        assert read_ids(consumer, 1000) == ids

    def test_entries_after_a_hundred_trimmed_ones_are_claimed_too(
        self, client: Client, keys: RunKeys
    ) -> None:
        consumer = make_consumer(client, keys)
        ids = add(client, keys, *[make_entry(seq=seq) for seq in range(1, 151)])
        client.xreadgroup(GROUP, "other", {keys.rollouts: ">"})
        client.xtrim(keys.rollouts, maxlen=50, approximate=False)
        consumer.claim_all()
        assert [entry.id for entry in consumer.read(1000, 1) if entry.fields] == ids[100:]

    def test_claiming_leaves_one_consumer_and_nothing_pending_elsewhere(
        self, client: Client, keys: RunKeys
    ) -> None:
        for _ in range(5):
            consumer = make_consumer(client, keys)
            add(client, keys, make_entry())
            consumer.claim_all()
            list(consumer.read(10, 1))
            list(consumer.read(10, 1))
        assert consumers(client, keys) == [CONSUMER]

    def test_an_idle_reader_neither_fails_nor_connects_again(self, client: Client, keys: RunKeys) -> None:
        consumer = make_consumer(client, keys)
        before = connections(client)
        assert [list(consumer.read(10, BLOCK_MS)) for _ in range(4)] == [[]] * 4
        assert connections(client) == before

    def test_the_longest_blocking_read_is_well_below_the_socket_timeout(self) -> None:
        assert 3 * BLOCK_MS < 1000 * SOCKET_TIMEOUT_S

    @pytest.mark.parametrize("damage", ["flushall", "destroy", "delete"])
    def test_a_lost_group_is_made_again(self, client: Client, keys: RunKeys, damage: str) -> None:
        consumer = make_consumer(client, keys)
        list(consumer.read(10, 1))
        inflict(client, keys, damage)
        assert list(consumer.read(10, 1)) == []
        ids = add(client, keys, make_entry())
        assert read_ids(consumer) == ids

    def test_a_lost_group_is_made_again_at_the_servers_memory_limit(
        self, client: Client, keys: RunKeys, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Otherwise no learner could ever empty it."""
        consumer = make_consumer(client, keys)
        list(consumer.read(10, 1))
        ids = add(client, keys, make_entry())
        with memory_limit(client):
            for _ in range(3):
                inflict(client, keys, "destroy")
                assert list(consumer.read(10, 1)) == []
            assert read_ids(consumer) == ids
        assert caplog.text.count("creating them again") == 1

    @pytest.mark.parametrize("by_hand", ["setid", "xack"])
    def test_entries_that_another_client_made_the_group_skip_are_delivered(
        self, client: Client, keys: RunKeys, by_hand: str
    ) -> None:
        """Otherwise they would count as backlog for ever."""
        consumer = make_consumer(client, keys)
        ids = add(client, keys, make_entry(), make_entry(seq=2))
        if by_hand == "setid":
            client.xgroup_setid(keys.rollouts, GROUP, "$")
        else:
            assert [entry.id for entry in read_new(consumer)] == ids
            client.xack(keys.rollouts, GROUP, *ids)
        reads = [list(consumer.read(10, 1)) for _ in range(4)]
        assert [entry.id for entries in reads for entry in entries] == ids

    @pytest.mark.parametrize("damage", ["flushall", "destroy", "delete"])
    def test_a_group_that_is_lost_while_its_reader_waits_is_made_again(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest, damage: str
    ) -> None:
        with opened(redis_server.url, "reader") as reading_client:
            consumer = make_consumer(reading_client, keys)
            list(consumer.read(10, 1))
            with in_background(lambda: list(consumer.read(10, BLOCK_MS)), stop) as reading:
                wait_until(lambda: blocked(client) == 1, 5, "the reader waits")
                inflict(client, keys, damage)
                assert reading.result(5) == []
            list(consumer.read(10, 1))
            ids = add(client, keys, make_entry())
            assert read_ids(consumer) == ids

    def test_a_reader_that_the_server_unblocks_with_an_error_continues(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        with opened(redis_server.url, "reader") as reading_client:
            consumer = make_consumer(reading_client, keys)
            number = integer(reading_client.client_id())
            list(consumer.read(10, 1))
            with in_background(lambda: list(consumer.read(10, BLOCK_MS)), stop) as reading:
                wait_until(lambda: blocked(client) == 1, 5, "the reader waits")
                client.client_unblock(number, error=True)
                assert reading.result(5) == []

    def test_after_a_lost_connection_pending_entries_are_read_again(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        with opened(redis_server.url, "reader") as reading_client:
            consumer = make_consumer(reading_client, keys)
            ids = add(client, keys, make_entry(seq=1))
            read_new(consumer)
            number = integer(reading_client.client_id())
            with in_background(lambda: list(consumer.read(10, BLOCK_MS)), stop) as reading:
                wait_until(lambda: blocked(client) == 1, 5, "the reader waits")
                client.client_kill_filter(_id=str(number))
                with pytest.raises(redis.ConnectionError):
                    reading.result(5)
            ids += add(client, keys, make_entry(seq=2))
            assert [read_ids(consumer), read_ids(consumer), read_ids(consumer)] == [ids[:1], [], ids[1:]]

    def test_entries_that_were_trimmed_in_hand_leave_the_pending_list(
        self, client: Client, keys: RunKeys
    ) -> None:
        consumer = make_consumer(client, keys)
        ids = add(client, keys, make_entry(seq=1), make_entry(seq=2))
        read_new(consumer)
        client.xtrim(keys.rollouts, maxlen=1, approximate=False)
        assert read_ids(make_consumer(client, keys)) == ids[1:]
        assert pending(client, keys) == 1

    def test_making_the_group_twice_is_no_error(self, client: Client, keys: RunKeys) -> None:
        assert ensure_group(client, keys) is True
        assert ensure_group(client, keys) is False


def inflict(client: Client, keys: RunKeys, damage: str) -> None:
    if damage == "flushall":
        client.flushall()
    elif damage == "destroy":
        client.xgroup_destroy(keys.rollouts, GROUP)
    else:
        client.delete(keys.rollouts)


def as_read(entry: dict[Any, Any]) -> StreamEntry:
    """An entry as a consumer gets it."""
    encoded = {str(name).encode(): value for name, value in entry.items()}
    return StreamEntry(b"0-1", {n: v if isinstance(v, bytes) else v.encode() for n, v in encoded.items()})


def consumers(client: Client, keys: RunKeys) -> list[str]:
    found = client.xinfo_consumers(keys.rollouts, GROUP)
    return [consumer["name"].decode() for consumer in found]


def connections(client: Client) -> int:
    return int(client.info("stats")["total_connections_received"])


class TestReadingInParts:
    def test_entries_come_in_order_however_many_come_together(self, client: Client, keys: RunKeys) -> None:
        consumer = make_consumer(client, keys)
        ids = add(client, keys, *(make_entry(seq=n) for n in range(1, 21)))
        list(consumer.read(3, 1))
        read = [[entry.id for entry in consumer.read(7, 1, at_once)] for at_once in (1, 3, 1000)]
        assert read == [ids[:7], ids[7:14], ids[14:]]
        assert list(consumer.read(7, 1, 2)) == []

    def test_only_the_first_part_is_waited_for(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        consumer = make_consumer(client, keys)
        list(consumer.read(3, 1))
        began = time.monotonic()
        assert list(consumer.read(20, 100, 1)) == []
        assert time.monotonic() - began < 1
        with in_background(lambda: list(consumer.read(20, 10_000, 1)), stop) as reading:
            wait_until(lambda: blocked(client) == 1, 5, "the reader waits")
            ids = add(client, keys, make_entry())
            assert [entry.id for entry in reading.result(5)] == ids

    def test_an_entry_is_opened_before_the_next_is_received(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with opened(redis_server.url, "reader") as reading_client:
            consumer = make_consumer(reading_client, keys)
            ids = add(client, keys, *(make_entry(seq=n) for n in range(1, 9)))
            list(consumer.read(3, 1))
            reading = consumer.read(8, 1, 2)
            assert [next(reading).id, next(reading).id] == ids[:2]
            reading_client.connection_pool.disconnect()
            with pytest.raises(redis.ConnectionError):
                next(reading)
            assert read_ids(consumer) == ids  # all were delivered to it; the intake has two in hand
            assert read_ids(consumer) == []

    def test_entries_that_an_interrupted_read_did_not_return_come_first_in_the_next(
        self, client: Client, keys: RunKeys
    ) -> None:
        consumer = make_consumer(client, keys)
        ids = add(client, keys, *(make_entry(seq=n) for n in range(1, 9)))
        list(consumer.read(3, 1))
        reading = consumer.read(6, 1, 2)
        next(reading)
        del reading
        assert [read_ids(consumer), read_ids(consumer), read_ids(consumer)] == [ids[:6], [], ids[6:]]

    @pytest.mark.parametrize("damage", ["flushall", "destroy", "delete"])
    def test_a_group_that_is_lost_between_two_parts_is_made_again(
        self, client: Client, keys: RunKeys, damage: str
    ) -> None:
        consumer = make_consumer(client, keys)
        list(consumer.read(3, 1))
        inflict(client, keys, damage)
        assert list(consumer.read(10, 1, 2)) == []
        ids = add(client, keys, *(make_entry(seq=n) for n in range(1, 5)))
        assert [entry.id for entry in consumer.read(10, 1, 2)] == ids
