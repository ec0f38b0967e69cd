"""The lease decides which learner leads a run, with which epoch and lineage."""

import time

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from learner.leadership.lease import LEASE_TTL_S
from tests.integration.learner_side import (
    die,
    in_background,
    lead,
    leadership_of,
    make_keeper,
)
from tests.integration.looking import holder_of


class TestRestart:
    def test_a_restart_continues_the_lineage_of_its_checkpoint_only(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        saved = first.lease.lineage
        die(client, keys)
        lead(client, keys, stop, owner="abandoned", known_epoch=1, update=3)
        die(client, keys)
        third = leadership_of(client, keys, stop, owner="learner-3")
        third.restore(5, saved, LedgerAudit(Ledger()), {})
        third.lease.acquire(known_epoch=1, update=4)
        assert third.lease.lineage.starts == ((1, 0), (3, 4))
        assert third.lease.lineage.contains(epoch=1, update=4)
        assert not third.lease.lineage.contains(epoch=1, update=5)
        assert not third.lease.lineage.contains(epoch=2, update=3)


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
        assert holder_of(client, keys) == "learner-2"

    def test_a_dead_holder_is_followed_though_the_servers_clock_was_set_back(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        """Its lease lasts for five minutes more, and is not renewed meanwhile."""
        lead(client, keys, stop, owner="dead")
        client.pexpire(keys.lease, 300_000)
        second = leadership_of(client, keys, stop, owner="learner-2")
        began = time.monotonic()
        second.lease.acquire(known_epoch=0, update=0)
        assert LEASE_TTL_S < time.monotonic() - began < LEASE_TTL_S + 4
        assert holder_of(client, keys) == "learner-2"

    def test_a_learner_does_not_follow_a_holder_that_renews_its_lease(
        self, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(private_client, keys, stop, owner="host-a:17")

        def renew() -> None:
            while not stop.requested:
                first.lease.renew()
                private_client.pexpire(keys.lease, 300_000)
                stop.sleep(1)

        second = leadership_of(private_client, keys, stop, owner="host-b:4")
        with in_background(renew, stop), pytest.raises(ConfigurationError, match="host-a:17"):
            second.lease.acquire(known_epoch=0, update=0)

    def test_an_older_releases_lease_is_judged_by_its_presence(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        client.set(keys.lease, "host-a:17", px=60_000)  # no beat tells whether it is renewed
        second = leadership_of(client, keys, stop, owner="host-b:4")
        with pytest.raises(ConfigurationError, match="host-a:17"):
            second.lease.acquire(known_epoch=0, update=0)

    def test_a_lease_that_was_handed_back_is_taken_at_once(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(client, keys, stop).lease.release()
        began = time.monotonic()
        lead(client, keys, stop, owner="learner-2")
        assert time.monotonic() - began < 1

    def test_one_of_two_learners_that_start_together_leads(self, client: Client, keys: RunKeys) -> None:
        answers = [FencedWrites(client, keys).acquire(owner, 5000, 0, 0) for owner in ("a", "b")]
        assert [answer.outcome for answer in answers] == ["acquired", "busy"]

    def test_waiting_for_the_lease_ends_when_a_stop_is_requested(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        lead(client, keys, stop)
        second = leadership_of(client, keys, stop, owner="learner-2")
        with in_background(lambda: second.lease.acquire(0, 0), stop) as waiting:
            stop.request()
            assert waiting.exception(2) is not None
