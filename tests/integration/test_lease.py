"""Who may write a run's keys: versions, epochs, lineage, and learners that meet."""

import time
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError, FencedError
from dppo_redis.fenced_writes import FencedWrites
from dppo_redis.keys import RunKeys
from dppo_redis.ledger import Books, Ledger, Outcome, Settlement
from dppo_redis.redis_client import Client, Patience
from dppo_redis.registry import Registry
from dppo_redis.rollout_stream import RolloutConsumer
from dppo_redis.run_store import Control, RunStore
from dppo_redis.shutdown import StopRequest
from dppo_redis.weight_store import WeightStore
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import Leadership, make_leadership
from learner.leadership.lease import LEASE_TTL_S
from learner.leadership.reserved_versions import ReservedVersions
from learner.leadership.takeover import stand_by
from learner.staleness import Lineage
from tests.conftest import memory_limit, wait_until
from tests.factories import make_description
from tests.integration.learner_side import (
    SPEC,
    add,
    in_background,
    lead,
    leadership_of,
    make_entry,
    make_keeper,
    publish,
)
from tests.integration.looking import commands, hash_of, imbalance, integer, ledger_of, version_of


def die(client: Client, keys: RunKeys) -> None:
    """What is left of a killed learner once its lease has run out."""
    client.delete(keys.lease)


def published(client: Client, keys: RunKeys) -> tuple[int, int]:
    stored = hash_of(client, keys.weights, but="blob")
    return int(stored["epoch"]), int(stored["version"])


class TestRestart:
    def test_versions_go_on_where_there_was_no_checkpoint(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        publish(first, update=1)
        die(client, keys)
        lead(client, keys, stop, owner="learner-2")
        assert published(client, keys) == (2, 3)

    def test_versions_go_on_above_redis_when_the_checkpoint_is_older(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        for update in range(1, 50):
            publish(first, update)
        die(client, keys)
        second = leadership_of(client, keys, stop, owner="learner-2")
        second.restore(40, first.lease.lineage, Books(Ledger()), {})
        second.lease.acquire(known_epoch=1, update=39)
        publish(second, update=39)
        assert published(client, keys) == (2, 51)

    def test_versions_and_epochs_go_on_above_the_checkpoint_when_redis_is_empty(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = leadership_of(client, keys, stop)
        leadership.restore(40, Lineage(((7, 0),)), Books(Ledger()), {})
        leadership.lease.acquire(known_epoch=7, update=39)
        publish(leadership, update=39)
        assert published(client, keys) == (8, 41)

    @pytest.mark.parametrize("ends", ["killed", "clean"])
    def test_versions_and_epochs_go_on_when_server_and_learner_died_together(
        self, client: Client, keys: RunKeys, stop: StopRequest, tmp_path: Path, ends: str
    ) -> None:
        """The checkpoint is older than what was published last; only the directory knows."""

        def start(owner: str) -> Leadership:
            reserved = ReservedVersions(tmp_path / "used.json")
            leadership = make_leadership(client, keys, make_description(SPEC), owner, stop, reserved=reserved)
            leadership.restore(4, Lineage(((1, 0),)), Books(Ledger()), {})
            leadership.lease.acquire(known_epoch=1, update=2)
            publish(leadership, update=2)
            return leadership

        first = start("first")
        for update in range(3, 9):
            publish(first, update)
        if ends == "clean":
            first.lease.release()
        client.flushall()
        second = start("second")
        assert second.fence.epoch > first.fence.epoch
        assert second.publisher.version > first.publisher.version
        assert ends == "killed" or second.publisher.version == first.publisher.version + 1

    def test_no_publication_ever_repeats_or_lowers_a_version(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        seen = []
        for life in range(5):
            leadership = leadership_of(client, keys, stop, owner=f"learner-{life}")
            if life == 3:
                leadership.restore(2, Lineage(), Books(Ledger()), {})
            leadership.lease.acquire(known_epoch=0, update=0)
            for update in range(3):
                publish(leadership, update)
                seen.append(published(client, keys))
            die(client, keys)
        assert seen == sorted(set(seen))
        assert [version for _, version in seen] == list(range(1, 16))

    def test_a_restart_continues_the_lineage_of_its_checkpoint_only(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        saved = first.lease.lineage
        die(client, keys)
        lead(client, keys, stop, owner="abandoned", known_epoch=1, update=3)
        die(client, keys)
        third = leadership_of(client, keys, stop, owner="learner-3")
        third.restore(5, saved, Books(Ledger()), {})
        third.lease.acquire(known_epoch=1, update=4)
        assert third.lease.lineage.starts == ((1, 0), (3, 4))
        assert third.lease.lineage.contains(epoch=1, update=4)
        assert not third.lease.lineage.contains(epoch=1, update=5)
        assert not third.lease.lineage.contains(epoch=2, update=3)

    def test_the_books_of_a_living_redis_are_taken_over_without_a_checkpoint(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        ids = add(client, keys, *[make_entry(seq=seq) for seq in (1, 2, 3)])
        first.bookkeeper.settle([Settlement(ids[0], Outcome.TRAINED, steps=8)])
        die(client, keys)
        second = lead(client, keys, stop, owner="learner-2")
        make_keeper(client, keys, second).tick()
        assert ledger_of(client, keys) == {"trained": 1, "steps:trained": 8}
        assert imbalance(client, keys) == 0

    def test_the_books_of_a_checkpoint_outlive_an_empty_redis(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = leadership_of(client, keys, stop)
        books = Books(Ledger({"trained": 8, "steps:trained": 64}), last_entries_added=10)
        leadership.restore(9, Lineage(((1, 0),)), books, {"0": 4})
        leadership.lease.acquire(known_epoch=1, update=4)
        leadership.bookkeeper.restore_stream()
        keeper = make_keeper(client, keys, leadership)
        keeper.tick()
        keeper.tick()
        expected = {"trained": 8, "steps:trained": 64, "entries_before": 10, "lost": 2, "lost:reset": 2}
        assert ledger_of(client, keys) == expected
        assert imbalance(client, keys) == 0
        assert Registry(client, keys).join(0) == (0, 5)


class TestMeeting:
    def test_a_learner_that_finds_a_living_one_refuses_and_names_it(
        self, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(private_client, keys, stop, owner="host-a:17")
        keeper = make_keeper(private_client, keys, first)
        second = leadership_of(private_client, keys, stop, owner="host-b:4")
        keeper.start()
        began = time.monotonic()
        try:
            with pytest.raises(ConfigurationError, match="host-a:17"):
                second.lease.acquire(known_epoch=0, update=0)
        finally:
            keeper.close()
        assert time.monotonic() - began < LEASE_TTL_S + 2
        assert private_client.get(keys.epoch) == b"1"

    def test_a_learner_takes_over_when_the_holder_is_dead(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(client, keys, stop)
        client.pexpire(keys.lease, 500)  # as if killed 4.5 s ago
        second = leadership_of(client, keys, stop, owner="learner-2")
        second.lease.acquire(known_epoch=0, update=0)
        assert client.get(keys.lease) == b"learner-2"

    def test_a_lease_that_was_handed_back_is_taken_at_once(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(client, keys, stop).lease.release()
        began = time.monotonic()
        lead(client, keys, stop, owner="learner-2")
        assert time.monotonic() - began < 1

    def test_a_standby_leaves_a_leader_whose_lease_was_wiped_the_time_to_put_it_back(
        self, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leader = lead(private_client, keys, stop)
        store = RunStore(private_client, keys)
        with in_background(lambda: stand_by(store, Patience(stop), stop), stop) as waiting:
            private_client.flushall()
            looks = commands(private_client, "get")
            wait_until(
                lambda: waiting.done() or commands(private_client, "get") > looks + 5, 5, "it has looked"
            )
            leader.lease.renew()
            assert not waiting.done()
            leader.lease.release()
            waiting.result(6)

    def test_a_standby_takes_over_as_soon_as_the_lease_of_a_dead_leader_has_run_out(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        FencedWrites(client, keys).acquire("dead", 1000, 0, 0)
        began = time.monotonic()
        stand_by(RunStore(client, keys), Patience(stop), stop)
        assert 0.9 < time.monotonic() - began < 3, "as long as for a lease that was wiped"

    def test_of_two_learners_that_start_at_once_one_leads(self, client: Client, keys: RunKeys) -> None:
        answers = [FencedWrites(client, keys).acquire(owner, 5000, 0, 0) for owner in ("a", "b")]
        assert [answer.outcome for answer in answers] == ["acquired", "busy"]

    def test_waiting_for_the_lease_ends_when_a_stop_is_asked_for(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(client, keys, stop)
        second = leadership_of(client, keys, stop, owner="learner-2")
        with in_background(lambda: second.lease.acquire(0, 0), stop) as waiting:
            stop.request()
            assert waiting.exception(2) is not None


class TestFencing:
    @pytest.fixture
    def overtaken(self, client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
        """Paused for longer than its lease, while another learner took over."""
        paused = lead(client, keys, stop, owner="paused")
        die(client, keys)
        lead(client, keys, stop, owner="successor")
        return paused

    def test_it_cannot_publish(self, overtaken: Leadership, client: Client, keys: RunKeys) -> None:
        before = published(client, keys)
        with pytest.raises(FencedError):
            publish(overtaken, update=9)
        assert published(client, keys) == before

    def test_it_cannot_settle(self, overtaken: Leadership, client: Client, keys: RunKeys) -> None:
        (entry,) = add(client, keys, make_entry())
        with pytest.raises(FencedError):
            overtaken.bookkeeper.settle([Settlement(entry, Outcome.TRAINED)])
        assert integer(client.xlen(keys.rollouts)) == 1
        assert overtaken.bookkeeper.books.ledger.settled == 0

    def test_it_cannot_renew_and_is_told_who_leads(self, overtaken: Leadership) -> None:
        with pytest.raises(FencedError, match="successor"):
            overtaken.lease.renew()

    def test_it_does_not_take_the_successors_lease_away(
        self, overtaken: Leadership, client: Client, keys: RunKeys
    ) -> None:
        overtaken.lease.release()
        assert client.get(keys.lease) == b"successor"

    def test_its_keeper_says_so_to_the_loop(
        self, overtaken: Leadership, client: Client, keys: RunKeys
    ) -> None:
        keeper = make_keeper(client, keys, overtaken)
        with pytest.raises(FencedError):
            keeper.start()

    def test_it_stays_fenced_when_the_successor_has_gone(
        self, overtaken: Leadership, client: Client, keys: RunKeys
    ) -> None:
        die(client, keys)
        with pytest.raises(FencedError):
            overtaken.lease.renew()

    def test_it_is_fenced_also_when_the_successor_has_a_lower_epoch(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        """Redis lost everything while the old one was paused, and the new one began at epoch 1."""
        paused = lead(client, keys, stop, owner="paused", known_epoch=4)
        client.flushall()
        lead(client, keys, stop, owner="successor")
        keeper = make_keeper(client, keys, paused)
        with pytest.raises(FencedError):
            keeper.tick()
        with (
            in_background(lambda: publish(paused, update=1), stop) as publishing,
            pytest.raises(FencedError),
        ):
            publishing.result(2)


class TestKeeperThread:
    def test_a_failure_of_the_keeper_reaches_the_loop(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = lead(client, keys, stop, owner="paused")
        keeper = make_keeper(client, keys, leadership)
        keeper.start()
        try:
            die(client, keys)
            FencedWrites(client, keys).acquire("successor", 60_000, 0, 0)
            wait_until(lambda: failed(keeper) is not None, 5, "the keeper notices")
            assert isinstance(failed(keeper), FencedError)
        finally:
            keeper.close()

    def test_the_keeper_never_ends_unnoticed(self, client: Client, keys: RunKeys, stop: StopRequest) -> None:
        leadership = lead(client, keys, stop)
        rounds = 0

        def status() -> dict[str, int]:
            nonlocal rounds
            rounds += 1
            if rounds == 2:
                raise RuntimeError("dictionary changed size during iteration")
            return {"update": 0}

        keeper = make_keeper(client, keys, leadership, status)
        keeper.start()
        try:
            wait_until(
                lambda: rounds > 2 or failed(keeper) is not None,
                4,
                "it goes on, or tells the loop that it ended",
            )
        finally:
            keeper.close()

    def test_actors_that_report_nonsense_do_not_end_the_keeper(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = lead(client, keys, stop)
        client.zadd(keys.actors, {"not a slot": 1.0, "9" * 5000: 1.0, "3": 1.0, "4": 1.0, "5": 1.0})
        client.hset(keys.actor(3), mapping={"wait_share": "most of it", b"\xff": b"\xff"})
        client.set(keys.actor(4), "not a hash")
        client.hset(keys.actor(5), "wait_share", "inf")
        make_keeper(client, keys, leadership).tick()
        assert version_of(client, keys) == 1
        assert hash_of(client, keys.status)["actor_wait_share"] == "0.0"
        assert Registry(client, keys).holder(3) is None


def failed(keeper: Keeper) -> Exception | None:
    try:
        keeper.check()
    except Exception as error:  # noqa: BLE001 whatever ended it
        return error
    return None


def test_a_publication_waits_for_the_keeper_to_renew_a_wiped_epoch(
    client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    leadership = lead(client, keys, stop)
    client.delete(keys.epoch)
    with in_background(lambda: publish(leadership, update=1), stop) as publishing:
        leadership.lease.renew()
        publishing.result(5)
    weights = WeightStore(client, keys).fetch()
    assert weights is not None
    assert (weights.epoch, weights.update) == (2, 1)


def test_a_renewal_whose_reply_was_lost_does_not_make_a_learner_believe_that_it_was_overtaken(
    client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    leadership = lead(client, keys, stop)
    client.flushall()
    FencedWrites(client, keys).acquire(
        leadership.lease.owner, 60_000, leadership.fence.epoch, leadership.fence.epoch
    )
    with in_background(lambda: publish(leadership, update=1), stop) as publishing:
        publishing.result(5)
    assert leadership.fence.epoch == 2
    weights = WeightStore(client, keys).fetch()
    assert weights is not None
    assert (weights.epoch, weights.update) == (2, 1)


def test_a_server_that_is_emptied_while_a_learner_starts_does_not_end_it(
    client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    leadership = leadership_of(client, keys, stop)
    consumer = RolloutConsumer(client, keys, leadership.bookkeeper.restore_stream)
    leadership.lease.acquire(known_epoch=0, update=0)
    client.flushall()
    with in_background(leadership.publisher.announce, stop) as announcing:
        announcing.result(5)
    leadership.bookkeeper.restore_stream()
    client.flushall()
    consumer.claim_all()
    publish(leadership, update=0)
    renew = leadership.lease.renew

    def renew_in_vain() -> None:
        renew()
        client.flushall()

    leadership.lease.renew = renew_in_vain  # type: ignore[method-assign]
    keeper = make_keeper(client, keys, leadership)
    keeper.start()
    keeper.close()
    leadership.lease.renew = renew  # type: ignore[method-assign]
    keeper.tick()
    assert version_of(client, keys) == leadership.publisher.version > 1


def test_the_end_of_a_run_is_recorded_at_the_servers_memory_limit(
    client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    """Nothing drains the stream any more, so waiting for room would never end."""
    leadership = lead(client, keys, stop)
    with (
        memory_limit(client),
        in_background(lambda: leadership.publisher.end_run("target", 42), stop) as ending,
    ):
        ending.result(2)
    assert RunStore(client, keys).control() == Control("stop", "target", 42)
