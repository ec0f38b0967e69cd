"""The ledger after a restart: from the server or from the checkpoint."""

from dppo_redis.protocol.ledger import Ledger, LedgerAudit, Outcome, Settlement
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from tests.integration.learner_side import (
    add,
    die,
    lead,
    leadership_of,
    make_entry,
    make_keeper,
)
from tests.integration.looking import imbalance, ledger_of


class TestRestart:
    def test_a_learner_without_a_checkpoint_takes_over_the_servers_ledger(
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

    def test_the_ledger_of_a_checkpoint_is_restored_to_an_empty_server(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = leadership_of(client, keys, stop)
        books = LedgerAudit(Ledger({"trained": 8, "steps:trained": 64}), last_entries_added=10)
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
