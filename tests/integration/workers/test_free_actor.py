"""An actor whose environments do not wait for each other, on a real server: openings, order and failures."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dppo_redis.protocol.spec import EnvironmentSource, Spec
from dppo_redis.protocol.wire import decode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import parse_header
from dppo_redis.store.run_store import PAUSE, RUN, STOP, RunStore
from learner.leadership.leadership import Leadership
from tests.conftest import RedisServer, wait_until
from tests.integration.actor_side import running_actor
from tests.integration.learner_side import SPEC, lead, publish
from tests.integration.workers.test_actor import allow, backlog, entries
from tests.unit.workers.scripted import ScriptedEnvironments
from workers.sampling.free_collector import FreeCollector
from workers.seeding import actor_seeds

N, K = 3, 2
BREAKS = replace(SPEC, environment=EnvironmentSource("tests.envs:RaisesInStep-v0", {"at": 30}))


@pytest.fixture
def leadership(client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    leadership = lead(client, keys, stop)
    allow(client, keys, 10**6)
    return leadership


def unequal(place: int, step: int) -> float:
    """The first environment is slow."""
    return 3.0 if place == 0 else 1.0 + step % 2


def freely(spec: Spec = SPEC) -> Callable[[int, int], FreeCollector]:
    def build(_boot: int, builds: int) -> FreeCollector:
        sampling = actor_seeds(1, slot=0, boot=0, count=N, builds=builds).sampling
        return FreeCollector(ScriptedEnvironments(spec, N, unequal), spec, sampling, K)

    return build


def test_rollouts_are_pushed_in_the_order_of_their_numbers_each_with_one_version(
    redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    with running_actor(redis_server.url, keys, freely()) as running:
        for update in range(1, 5):
            running.wait_for_pushes(4)
            publish(leadership, update)
        running.wait_for_pushes(4)
    found = entries(client, keys)
    headers = [parse_header(entry) for entry in found]
    assert [header.seq for header in headers] == list(range(1, len(headers) + 1))
    versions = [header.version for header in headers]
    assert versions == sorted(versions)
    assert len(set(versions)) == 5
    rollouts = [decode_rollout(entry.fields[b"payload"], SPEC) for entry in found]
    for one, following in itertools.pairwise(rollouts):
        np.testing.assert_array_equal(one.last_observations, following.observations[0])


@pytest.mark.usefixtures("leadership")
def test_no_rollout_is_opened_while_the_backlog_is_high_and_open_ones_are_finished(
    redis_server: RedisServer, client: Client, keys: RunKeys
) -> None:
    allow(client, keys, 3)
    with running_actor(redis_server.url, keys, freely()) as running:
        running.wait_until_it_waits()
        assert 3 <= backlog(client, keys) <= 3 + K - 1
        assert isinstance(running.actor.collector, FreeCollector)
        assert not running.actor.collector.is_open
        allow(client, keys, 10)
        running.wait_for_pushes(3)


@pytest.mark.usefixtures("leadership")
def test_a_pause_lets_it_finish_what_is_open_and_a_stop_ends_it(
    redis_server: RedisServer, client: Client, keys: RunKeys
) -> None:
    store = RunStore(client, keys)
    with running_actor(redis_server.url, keys, freely()) as running:
        running.wait_for_pushes(2)
        store.set_state(PAUSE)
        running.wait_until_it_waits()
        collector = running.actor.collector
        assert isinstance(collector, FreeCollector)
        assert not collector.is_open
        store.set_state(RUN)
        running.wait_for_pushes(2)
        store.set_state(STOP)
        running.wait_for_the_end()


@pytest.mark.usefixtures("leadership")
def test_environments_that_broke_are_built_anew_and_open_rollouts_are_dropped(
    redis_server: RedisServer, client: Client, keys: RunKeys
) -> None:
    built = 0

    def build(boot: int, builds: int) -> FreeCollector:
        nonlocal built
        built += 1
        return freely(spec=BREAKS if built == 1 else SPEC)(boot, builds)

    with running_actor(redis_server.url, keys, build) as running:
        wait_until(lambda: running.alive and built == 2, 10, "they are built anew")
        running.wait_for_pushes(3)
        assert "step raised RuntimeError" in running.actor.stats.last_error
    headers = [parse_header(entry) for entry in entries(client, keys)]
    assert [header.seq for header in headers] == list(range(1, len(headers) + 1))
