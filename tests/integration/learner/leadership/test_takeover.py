"""The moment at which a learner on standby takes over."""

import shutil
import time
from pathlib import Path

import pytest

from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store import fenced_writes
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import RunStore
from learner.leadership.leadership import make_leadership
from learner.leadership.lease import LEASE_TTL_S
from learner.leadership.reserved_versions import ReservedVersions
from learner.leadership.takeover import stand_by
from tests.conftest import wait_until
from tests.factories import make_description
from tests.integration.learner_side import SPEC, in_background, lead, publish
from tests.integration.looking import commands

RANDOM_STEP = fenced_writes.epoch_step  # what tests replace, so that epochs can be named


class TestStandby:
    def test_a_standby_leaves_a_leader_whose_lease_was_wiped_the_time_to_put_it_back(
        self, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        leader = lead(private_client, keys, stop)
        store = RunStore(private_client, keys)
        with in_background(lambda: stand_by(store, RetryLoop(stop), stop), stop) as waiting:
            private_client.flushall()
            looks = commands(private_client, "get")
            wait_until(
                lambda: waiting.done() or commands(private_client, "get") > looks + 5, 5, "it has looked"
            )
            leader.lease.renew()
            assert not waiting.done()
            leader.lease.release()
            waiting.result(6)

    def test_a_standby_does_not_wait_for_a_lease_that_a_step_of_the_clock_prolonged(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        FencedWrites(client, keys).acquire("dead", 300_000, 0, 0)
        began = time.monotonic()
        stand_by(RunStore(client, keys), RetryLoop(stop), stop)
        assert LEASE_TTL_S < time.monotonic() - began < LEASE_TTL_S + 4

    def test_a_standby_takes_over_as_soon_as_the_lease_of_a_dead_leader_has_run_out(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        FencedWrites(client, keys).acquire("dead", 1000, 0, 0)
        began = time.monotonic()
        stand_by(RunStore(client, keys), RetryLoop(stop), stop)
        assert 0.9 < time.monotonic() - began < 3, "as long as for a lease that was wiped"


def test_a_directory_restored_beside_an_empty_server_repeats_no_pair_of_epoch_and_version(
    client: Client, keys: RunKeys, stop: StopRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_writes, "epoch_step", RANDOM_STEP)
    used, backup = tmp_path / "used.json", tmp_path / "backup.json"
    published: list[tuple[int, int]] = []
    for life in range(4):
        leadership = make_leadership(
            client, keys, make_description(SPEC), f"learner-{life}", stop, reserved=ReservedVersions(used)
        )
        leadership.lease.acquire(known_epoch=0, update=0)
        leadership.bookkeeper.restore_stream()
        for _ in range(3):
            publish(leadership)
            published.append((leadership.fence.epoch, leadership.publisher.version))
        if life == 0:
            shutil.copy(used, backup)
        shutil.copy(backup, used)
        client.flushall()
    assert len(set(published)) == len(published) == 12
