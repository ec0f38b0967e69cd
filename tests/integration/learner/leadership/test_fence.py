"""A learner that lost its lease cannot write; a learner whose epoch was wiped renews it."""

import pytest

from dppo_redis.errors import FencedError
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.weight_store import WeightStore
from learner.leadership.leadership import Leadership
from tests.integration.learner_side import (
    add,
    die,
    in_background,
    lead,
    make_entry,
    make_keeper,
    publish,
)
from tests.integration.looking import holder_of, integer, published


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
        assert overtaken.bookkeeper.ledger_audit.ledger.settled == 0

    def test_it_cannot_renew_and_its_error_names_the_leader(self, overtaken: Leadership) -> None:
        with pytest.raises(FencedError, match="successor"):
            overtaken.lease.renew()

    def test_it_does_not_take_the_successors_lease_away(
        self, overtaken: Leadership, client: Client, keys: RunKeys
    ) -> None:
        overtaken.lease.release()
        assert holder_of(client, keys) == "successor"

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
