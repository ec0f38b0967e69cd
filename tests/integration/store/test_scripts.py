"""The learner's four scripts, run by a real server."""

from collections.abc import Iterator
from typing import cast

import pytest
import redis

from dppo_redis.errors import FencedError
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.store import fenced_writes
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import EpochMissingError, FencedWrites
from dppo_redis.store.keys import GROUP, RunKeys
from dppo_redis.store.rollout_stream import ensure_group
from tests.conftest import RedisServer, memory_limit, opened
from tests.factories import make_spec, make_weights
from tests.integration.looking import hash_of, holder_of, integer, lengths_of

TTL_MS = 5000
STEP = fenced_writes.epoch_step  # what tests replace, so that epochs can be named


@pytest.fixture
def writes(client: Client, keys: RunKeys) -> FencedWrites:
    return FencedWrites(client, keys)


def add_entries(client: Client, keys: RunKeys, count: int) -> list[bytes]:
    """Entries of a group's consumer that has read them all."""
    ensure_group(client, keys)
    ids = [cast(bytes, client.xadd(keys.rollouts, {"n": str(n)})) for n in range(count)]
    client.xreadgroup(GROUP, "reader", {keys.rollouts: ">"})
    return ids


class TestAcquire:
    def test_the_first_learner_gets_epoch_1(self, writes: FencedWrites) -> None:
        answer = writes.acquire("a", TTL_MS, epoch=0, floor=0)
        assert (answer.outcome, answer.epoch, answer.holder) == ("acquired", 1, "a")

    def test_a_lease_has_the_ttl_that_was_asked_for(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        assert 0 < int(client.pttl(keys.lease)) <= TTL_MS

    def test_the_refusal_of_a_second_learner_names_the_leader(self, writes: FencedWrites) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        answer = writes.acquire("b", TTL_MS, epoch=0, floor=0)
        assert (answer.outcome, answer.epoch, answer.holder) == ("busy", 1, "a")

    def test_a_renewal_keeps_the_epoch_and_prolongs_the_lease(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        client.pexpire(keys.lease, 100)
        answer = writes.acquire("a", TTL_MS, epoch=1, floor=1)
        assert (answer.outcome, answer.epoch) == ("held", 1)
        assert int(client.pttl(keys.lease)) > 100

    def test_a_lease_that_ran_out_unnoticed_is_taken_up_again_in_the_same_epoch(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        client.delete(keys.lease)
        assert writes.acquire("a", TTL_MS, epoch=1, floor=1).outcome == "held"

    def test_a_learner_that_was_overtaken_is_fenced_while_the_other_leads(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        client.delete(keys.lease)
        writes.acquire("b", TTL_MS, epoch=0, floor=0)
        answer = writes.acquire("a", TTL_MS, epoch=1, floor=1)
        assert (answer.outcome, answer.epoch, answer.holder) == ("fenced", 2, "b")

    def test_a_learner_that_was_overtaken_is_fenced_after_the_other_has_gone(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        client.delete(keys.lease)
        writes.acquire("b", TTL_MS, epoch=0, floor=0)
        writes.release("b")
        assert writes.acquire("a", TTL_MS, epoch=1, floor=1).outcome == "fenced"
        assert client.get(keys.lease) is None

    @pytest.mark.parametrize("stored", [None, "3"], ids=["wiped", "restored to an older one"])
    def test_a_learner_whose_epoch_was_lost_acquires_a_higher_one(
        self, writes: FencedWrites, client: Client, keys: RunKeys, stored: str | None
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=6)
        if stored is None:
            client.delete(keys.epoch)
        else:
            client.set(keys.epoch, stored)
        answer = writes.acquire("a", TTL_MS, epoch=7, floor=7)
        assert (answer.outcome, answer.epoch) == ("acquired", 8)

    def test_a_learner_recognises_its_new_epoch_although_the_reply_was_lost(
        self, writes: FencedWrites, client: Client
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        client.flushall()
        writes.acquire("a", TTL_MS, epoch=1, floor=1)
        answer = writes.acquire("a", TTL_MS, epoch=1, floor=1)
        assert (answer.outcome, answer.epoch) == ("acquired", 2)

    def test_a_new_learner_starts_above_its_checkpoint_and_above_redis(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        assert writes.acquire("a", TTL_MS, epoch=0, floor=40).epoch == 41
        client.delete(keys.lease)
        assert writes.acquire("b", TTL_MS, epoch=0, floor=2).epoch == 42

    def test_every_renewal_leaves_another_value(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        values = {client.get(keys.lease)}
        for _ in range(3):
            writes.acquire("a", TTL_MS, epoch=1, floor=1)
            values.add(client.get(keys.lease))
        assert len(values) == 4

    def test_only_the_lease_value_that_was_not_renewed_is_replaced(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        seen = writes.acquire("b", TTL_MS, epoch=0, floor=0).value
        writes.acquire("a", TTL_MS, epoch=1, floor=1)
        assert writes.acquire("b", TTL_MS, epoch=0, floor=0, stood_still=seen).outcome == "busy"
        answer = writes.acquire("b", TTL_MS, 0, 0, cast(bytes, client.get(keys.lease)))
        assert (answer.outcome, answer.epoch, answer.holder) == ("acquired", 2, "b")
        assert writes.acquire("a", TTL_MS, epoch=1, floor=1).outcome == "fenced"

    def test_an_epoch_is_not_taken_twice_though_all_that_knew_it_is_gone(
        self, writes: FencedWrites, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run's directory was restored from a backup, beside an empty server."""
        monkeypatch.setattr(fenced_writes, "epoch_step", STEP)
        taken = set()
        for _ in range(30):
            client.flushall()
            taken.add(writes.acquire("a", TTL_MS, epoch=0, floor=7).epoch)
        assert len(taken) == 30
        assert min(taken) > 7

    def test_epochs_grow_however_often_one_is_taken_and_stay_whole_numbers(
        self, writes: FencedWrites, client: Client, keys: RunKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fenced_writes, "epoch_step", STEP)
        epoch = 2**51  # after some 10**9 takeovers
        for _ in range(3):
            client.delete(keys.lease)
            before, epoch = epoch, writes.acquire("a", TTL_MS, epoch=0, floor=epoch).epoch
            assert before < epoch <= before + 2**20
            assert client.get(keys.epoch) == str(epoch).encode()
            assert writes.acquire("a", TTL_MS, epoch=epoch, floor=epoch).outcome == "held"

    def test_only_the_owner_hands_a_lease_back(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        writes.release("b")
        assert holder_of(client, keys) == "a"
        writes.release("a")
        assert client.get(keys.lease) is None

    def test_the_epoch_outlives_the_lease_that_was_handed_back(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        writes.release("a")
        assert writes.acquire("b", TTL_MS, epoch=0, floor=0).epoch == 2
        assert client.pttl(keys.epoch) == -1


class TestPublish:
    @pytest.fixture(autouse=True)
    def lead(self, writes: FencedWrites) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=4)

    def test_the_hash_says_in_plain_text_what_the_blob_is(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        weights = make_weights(make_spec(), epoch=5, version=3, update=2, trained_steps=64)
        assert writes.publish(weights) is None
        stored = hash_of(client, keys.weights, but="blob")
        plain = {name: stored[name] for name in ("epoch", "version", "update", "steps")}
        assert plain == {"epoch": "5", "version": "3", "update": "2", "steps": "64"}
        assert stored["bytes"] == str(lengths_of(client, keys.weights)["blob"])

    def test_an_old_token_is_refused(self, writes: FencedWrites, client: Client, keys: RunKeys) -> None:
        with pytest.raises(FencedError):
            writes.publish(make_weights(make_spec(), epoch=4, version=9))
        assert client.exists(keys.weights) == 0

    def test_a_lost_token_is_distinguished_from_an_old_one(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        client.delete(keys.epoch)
        with pytest.raises(EpochMissingError):
            writes.publish(make_weights(make_spec(), epoch=5, version=9))

    @pytest.mark.parametrize("version", [6, 7], ids=["lower", "equal"])
    def test_a_version_that_is_not_higher_changes_nothing(
        self, writes: FencedWrites, client: Client, keys: RunKeys, version: int
    ) -> None:
        writes.publish(make_weights(make_spec(), epoch=5, version=7, update=1))
        assert writes.publish(make_weights(make_spec(), epoch=5, version=version, update=2)) == 7
        stored = hash_of(client, keys.weights, but="blob")
        assert (stored["version"], stored["update"]) == ("7", "1")

    def test_a_version_that_is_no_number_is_replaced(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        client.hset(keys.weights, "version", "latest")
        assert writes.publish(make_weights(make_spec(), epoch=5, version=1)) is None
        assert hash_of(client, keys.weights, but="blob")["version"] == "1"


class TestSettle:
    @pytest.fixture(autouse=True)
    def lead(self, writes: FencedWrites) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=4)

    def test_outcomes_reasons_and_steps_are_counted(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        first, second, third = add_entries(client, keys, 3)
        settlements = [
            Settlement(first, Outcome.TRAINED, steps=8),
            Settlement(second, Outcome.TRAINED, steps=7),
            Settlement(third, Outcome.REFUSED, "crc"),
        ]
        assert writes.settle(5, settlements) == [True, True, True]
        expected = {"trained": "2", "steps:trained": "15", "refused": "1", "refused:crc": "1"}
        assert hash_of(client, keys.ledger) == expected

    def test_a_settled_entry_is_neither_stored_nor_pending(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        (entry,) = add_entries(client, keys, 1)
        writes.settle(5, [Settlement(entry, Outcome.TRAINED)])
        assert client.xlen(keys.rollouts) == 0
        assert client.xpending(keys.rollouts, GROUP)["pending"] == 0

    def test_thousands_are_settled_at_once(self, writes: FencedWrites, client: Client, keys: RunKeys) -> None:
        entries = add_entries(client, keys, 2500)
        client.xreadgroup(GROUP, "learner", {keys.rollouts: ">"})
        counted = writes.settle(5, [Settlement(entry, Outcome.TRAINED, steps=8) for entry in entries])
        assert counted == [True] * 2500
        assert hash_of(client, keys.ledger) == {"trained": "2500", "steps:trained": "20000"}
        assert client.xpending(keys.rollouts, GROUP)["pending"] == 0

    def test_a_repeated_settle_counts_nothing_twice(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        (entry,) = add_entries(client, keys, 1)
        writes.settle(5, [Settlement(entry, Outcome.TRAINED, steps=8)])
        assert writes.settle(5, [Settlement(entry, Outcome.STALE, steps=8)]) == [False]
        assert hash_of(client, keys.ledger) == {"trained": "1", "steps:trained": "8"}

    def test_an_entry_that_was_trimmed_meanwhile_counts_nothing_and_is_acknowledged(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        trimmed, kept = add_entries(client, keys, 2)
        client.xtrim(keys.rollouts, maxlen=1, approximate=False)
        settlements = [Settlement(trimmed, Outcome.TRAINED, steps=8), Settlement(kept, Outcome.STALE)]
        assert writes.settle(5, settlements) == [False, True]
        assert hash_of(client, keys.ledger) == {"stale": "1"}
        assert client.xpending(keys.rollouts, GROUP)["pending"] == 0

    def test_an_old_token_settles_nothing(self, writes: FencedWrites, client: Client, keys: RunKeys) -> None:
        (entry,) = add_entries(client, keys, 1)
        with pytest.raises(FencedError):
            writes.settle(4, [Settlement(entry, Outcome.TRAINED)])
        assert client.xlen(keys.rollouts) == 1
        assert client.exists(keys.ledger) == 0

    @pytest.mark.parametrize("damage", ["another type", "a count that is no number"])
    def test_a_damaged_ledger_does_not_lose_what_is_settled(
        self, writes: FencedWrites, client: Client, keys: RunKeys, damage: str
    ) -> None:
        """It counts at once, or leaves the entries to be settled when the ledger is whole again."""
        first, second = add_entries(client, keys, 2)
        if damage == "another type":
            client.set(keys.ledger, "not a ledger")
        else:
            client.hset(keys.ledger, "trained", "many")
        settlements = [Settlement(first, Outcome.STALE), Settlement(second, Outcome.TRAINED)]
        try:
            counted = writes.settle(5, settlements)
        except redis.ResponseError:
            client.delete(keys.ledger)
            counted = writes.settle(5, settlements)
        assert counted == [True, True]
        assert hash_of(client, keys.ledger) == {"stale": "1", "trained": "1"}


class TestWrite:
    @pytest.fixture(autouse=True)
    def lead(self, writes: FencedWrites) -> None:
        writes.acquire("a", TTL_MS, epoch=0, floor=4)

    def test_a_hash_is_replaced_whole(self, writes: FencedWrites, client: Client, keys: RunKeys) -> None:
        writes.write_hash(5, keys.status, {"old": 1})
        writes.write_hash(5, keys.status, {"new": 2})
        assert hash_of(client, keys.status) == {"new": "2"}

    def test_a_key_of_another_type_is_replaced(
        self, writes: FencedWrites, client: Client, keys: RunKeys
    ) -> None:
        client.rpush(keys.status, "a list")
        client.rpush(keys.spec, "a list")
        writes.write_hash(5, keys.status, {"a": 1})
        writes.write_string(5, keys.spec, "text")
        assert hash_of(client, keys.status) == {"a": "1"}
        assert client.get(keys.spec) == b"text"

    def test_an_old_token_writes_nothing(self, writes: FencedWrites, client: Client, keys: RunKeys) -> None:
        with pytest.raises(FencedError):
            writes.write_hash(4, keys.status, {"a": 1})
        with pytest.raises(FencedError):
            writes.write_string(4, keys.spec, "text")
        assert client.exists(keys.status, keys.spec) == 0


def use_all(writes: FencedWrites, client: Client, keys: RunKeys, entry: bytes, version: int) -> None:
    """Every script once, as the learner that holds epoch 1."""
    assert writes.acquire("a", TTL_MS, epoch=1, floor=1).outcome == "held"
    assert writes.publish(make_weights(make_spec(), epoch=1, version=version)) is None
    assert writes.settle(1, [Settlement(entry, Outcome.TRAINED, "why", 3)]) == [True]
    writes.write_hash(1, keys.status, {"a": 1})
    writes.write_string(1, keys.spec, "text")
    writes.release("a")
    assert integer(client.exists(keys.lease)) == 0


def test_all_scripts_work_at_the_servers_memory_limit(
    writes: FencedWrites, client: Client, keys: RunKeys
) -> None:
    writes.acquire("a", TTL_MS, epoch=0, floor=0)
    (entry,) = add_entries(client, keys, 1)
    client.script_flush()
    with memory_limit(client):
        use_all(writes, client, keys, entry, version=1)


def test_scripts_are_loaded_again_where_the_server_has_forgotten_them(
    writes: FencedWrites, client: Client, keys: RunKeys
) -> None:
    for version in (1, 2):
        client.script_flush()
        client.delete(keys.lease, keys.epoch)
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        (entry,) = add_entries(client, keys, 1)
        use_all(writes, client, keys, entry, version)


@pytest.fixture
def restarted(private_server: RedisServer) -> Iterator[Client]:
    with opened(private_server.url) as client:
        writes = FencedWrites(client, RunKeys("before"))
        writes.acquire("a", TTL_MS, epoch=0, floor=0)
        private_server.restart()
        yield client


def test_scripts_survive_a_restart_of_the_server(restarted: Client, keys: RunKeys) -> None:
    restarted.connection_pool.disconnect()
    writes = FencedWrites(restarted, keys)
    writes.acquire("a", TTL_MS, epoch=0, floor=0)
    (entry,) = add_entries(restarted, keys, 1)
    use_all(writes, restarted, keys, entry, version=1)
