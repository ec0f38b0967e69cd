"""Versions and epochs of publications over restarts, and the end of a run."""

from pathlib import Path

import pytest

from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.reports import Control
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import RunStore
from learner.leadership.leadership import Leadership, make_leadership
from learner.leadership.reserved_versions import ReservedVersions
from tests.conftest import memory_limit
from tests.factories import make_description
from tests.integration.learner_side import (
    SPEC,
    die,
    in_background,
    lead,
    leadership_of,
    publish,
)
from tests.integration.looking import published


class TestRestart:
    def test_versions_continue_without_a_checkpoint(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        publish(first, update=1)
        die(client, keys)
        lead(client, keys, stop, owner="learner-2")
        assert published(client, keys) == (2, 3)

    def test_versions_continue_above_those_of_redis_if_the_checkpoint_is_older(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        first = lead(client, keys, stop)
        for update in range(1, 50):
            publish(first, update)
        die(client, keys)
        second = leadership_of(client, keys, stop, owner="learner-2")
        second.restore(40, first.lease.lineage, LedgerAudit(Ledger()), {})
        second.lease.acquire(known_epoch=1, update=39)
        publish(second, update=39)
        assert published(client, keys) == (2, 51)

    def test_versions_and_epochs_continue_above_the_checkpoint_if_redis_is_empty(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leadership = leadership_of(client, keys, stop)
        leadership.restore(40, Lineage(((7, 0),)), LedgerAudit(Ledger()), {})
        leadership.lease.acquire(known_epoch=7, update=39)
        publish(leadership, update=39)
        assert published(client, keys) == (8, 41)

    @pytest.mark.parametrize("ends", ["killed", "clean"])
    def test_versions_and_epochs_continue_if_server_and_learner_died_together(
        self, client: Client, keys: RunKeys, stop: StopRequest, tmp_path: Path, ends: str
    ) -> None:
        """The checkpoint is older than what was published last; only the directory knows."""

        def start(owner: str) -> Leadership:
            reserved = ReservedVersions(tmp_path / "used.json")
            leadership = make_leadership(client, keys, make_description(SPEC), owner, stop, reserved=reserved)
            leadership.restore(4, Lineage(((1, 0),)), LedgerAudit(Ledger()), {})
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
                leadership.restore(2, Lineage(), LedgerAudit(Ledger()), {})
            leadership.lease.acquire(known_epoch=0, update=0)
            for update in range(3):
                publish(leadership, update)
                seen.append(published(client, keys))
            die(client, keys)
        assert seen == sorted(set(seen))
        assert [version for _, version in seen] == list(range(1, 16))


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
