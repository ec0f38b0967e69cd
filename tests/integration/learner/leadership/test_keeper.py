"""How the keeper's thread ends, and what does not end it."""

import pytest

from dppo_redis.errors import FencedError, LeaseHeldError
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import LearnerStatus
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer
from learner.leadership.keeper import Keeper
from tests.conftest import wait_until
from tests.integration.learner_side import (
    die,
    in_background,
    lead,
    leadership_of,
    make_keeper,
    publish,
)
from tests.integration.looking import hash_of, version_of


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

    def test_the_lease_is_kept_while_a_publication_takes_longer_than_it_lasts(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        """On a slow link: who publishes holds the lock, and the keeper waits for it."""
        leadership = lead(client, keys, stop, owner="slow")
        keeper = make_keeper(client, keys, leadership)
        keeper.start()
        second = leadership_of(client, keys, stop, owner="learner-2")
        try:
            with leadership.fence.lock, pytest.raises(LeaseHeldError, match="slow"):
                second.lease.acquire(known_epoch=0, update=0)
            keeper.check()
        finally:
            keeper.close()

    def test_what_keeps_a_lease_never_takes_one(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = lead(client, keys, stop)
        for change in (lambda: client.delete(keys.lease), lambda: client.set(keys.epoch, 7)):
            change()
            leadership.fence.writes.keep(leadership.lease.owner, 5000, leadership.fence.epoch)
            assert client.get(keys.lease) is None

    def test_the_keeper_never_ends_unnoticed(self, client: Client, keys: RunKeys, stop: StopRequest) -> None:
        leadership = lead(client, keys, stop)
        rounds = 0

        def status() -> LearnerStatus:
            nonlocal rounds
            rounds += 1
            if rounds == 2:
                raise RuntimeError("dictionary changed size during iteration")
            return from_fields(LearnerStatus, {})

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
