"""Errors that end the keeper's thread, errors that do not, and the pace that it sets."""

import socket
from dataclasses import replace

import pytest

from dppo_redis.errors import FencedError, LeaseHeldError
from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.pacing import FleetPacing
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import ActorReport, Control, LearnerStatus
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer
from dppo_redis.store.run_status import RunStatus
from learner.health_log import RunWarnings
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

    def test_the_thread_that_keeps_a_lease_never_takes_one(
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


class TestFleet:
    """The keeper paces the living actors and names missing ones."""

    PACING = FleetPacing(
        planned_actors=2,
        rollouts_per_update=2,
        max_staleness=4,
        publish_every=1,
        rollout_steps=128,
        envs_per_actor=8,
        batch_steps=2048,
        keeps_length=False,
    )

    def test_the_fleet_that_comes_decides_how_long_rollouts_are(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        keeper = make_keeper(client, keys, lead(client, keys, stop), pacing=self.PACING)
        registry = Registry(client, keys)
        for actors, steps in ((1, "128"), (2, "128"), (9, "28")):
            for slot in range(actors):
                registry.beat(slot, ActorReport(boot=1))
            keeper.tick()
            assert hash_of(client, keys.control)["rollout_steps"] == steps
            assert hash_of(client, keys.status)["rollout_steps"] == steps
        for slot in range(2, 9):
            registry.leave(slot, boot=1)
        keeper.tick()
        assert hash_of(client, keys.control)["rollout_steps"] == "128"

    def test_rollouts_that_keep_their_length_are_a_warning_while_there_are_too_many(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        warnings, pacing = RunWarnings(), replace(self.PACING, keeps_length=True)
        leadership, registry = lead(client, keys, stop), Registry(client, keys)
        keeper = Keeper(leadership, registry, lambda: from_fields(LearnerStatus, {}), pacing, warnings)
        for slot in range(9):
            registry.beat(slot, ActorReport(boot=1))
        keeper.tick()
        assert "set max_staleness to 5 or more" not in warnings.texts
        assert "actors to 9 or rollout_steps to 28" in warnings.texts[0]
        for slot in range(2, 9):
            registry.leave(slot, boot=1)
        keeper.tick()
        assert warnings.texts == ()

    def test_data_that_are_far_older_than_planned_are_a_warning_once_that_has_lasted(
        self, client: Client, keys: RunKeys, stop: StopRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = replace(from_fields(LearnerStatus, {}), staleness_recent=3.5)
        warnings, leadership = RunWarnings(), lead(client, keys, stop)
        keeper = Keeper(leadership, Registry(client, keys), lambda: report, self.PACING, warnings)
        keeper.tick()
        assert list(warnings.texts) == []
        monkeypatch.setattr("learner.leadership.keeper._STALENESS_WARNING_AFTER_S", 0.0)
        keeper.tick()
        assert warnings.texts[0].startswith("the mean staleness is 3.5 updates, and would be at most ")
        report = replace(report, staleness_recent=0.9)
        keeper.tick()
        assert warnings.texts == ()

    def test_an_actor_whose_registration_expires_is_missing_and_an_actor_that_deregisters_is_not(
        self, client: Client, keys: RunKeys, stop: StopRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("learner.leadership.missing_actors.LATE_S", 0.0)
        keeper = make_keeper(client, keys, lead(client, keys, stop), pacing=self.PACING)
        registry = Registry(client, keys)
        for slot in (0, 1, 1000, 1001):
            registry.beat(slot, ActorReport(boot=1))
        client.hset(keys.actor(1), "host", "b")
        keeper.tick()
        client.delete(keys.actor(1), keys.actor(1001))
        registry.leave(1000, boot=1)
        for _ in range(2):
            keeper.tick()
        status = RunStatus("run", hash_of(client, keys.status), NOTHING, Ledger(), None, {}, 0.0)
        assert status.keeper.planned_actors == 2
        here = socket.gethostname()
        assert [line.partition(" last seen")[0] for line in status.keeper.missing] == [
            "1 of 2 planned actors, host b (actor 1)",
            f"1 of 2 planned actors, actor 1001 on host {here}",
        ]


NOTHING = Control("run", "", None)


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
