"""When a learner on standby takes over."""

import time

from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, Patience
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import RunStore
from learner.leadership.takeover import stand_by
from tests.conftest import wait_until
from tests.integration.learner_side import (
    in_background,
    lead,
)
from tests.integration.looking import commands


class TestStandby:
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
