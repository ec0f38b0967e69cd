"""The actor's loop on a real server: pacing, weights, control, faults."""

from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.protocol.wire import decode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import StreamEntry, parse_header
from dppo_redis.store.run_store import PAUSE, RUN, STOP, RunStore
from learner.leadership.leadership import Leadership
from tests.conftest import RedisServer, memory_limit, opened, wait_until
from tests.factories import (
    make_collector,
    make_description,
    make_environments,
    make_model,
    make_spec,
    make_weights,
)
from tests.integration.actor_side import SLOT, environments_of, running_actor
from tests.integration.learner_side import SPEC, STEPS, lead, leadership_of, make_keeper, publish
from tests.integration.looking import commands, hash_of, integer

FAULTS = "tests.envs:"


@pytest.fixture
def leadership(client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    """A learner that has published, and lets actors push as much as they like."""
    leadership = lead(client, keys, stop)
    allow(client, keys, 10**6)
    return leadership


def allow(client: Client, keys: RunKeys, backlog_high: int) -> None:
    client.hset(keys.control, "backlog_high", str(backlog_high))


def entries(client: Client, keys: RunKeys) -> list[StreamEntry]:
    found = cast(list[tuple[bytes, dict[bytes, bytes]]], client.xrange(keys.rollouts))
    return [StreamEntry(entry_id, fields) for entry_id, fields in found]


def updates(client: Client, keys: RunKeys) -> list[int]:
    return [parse_header(entry).update for entry in entries(client, keys)]


def backlog(client: Client, keys: RunKeys) -> int:
    return integer(client.xlen(keys.rollouts))


def report(client: Client, keys: RunKeys) -> dict[str, str]:
    return hash_of(client, keys.actor(SLOT))


@pytest.mark.usefixtures("leadership")
class TestRolloutLength:
    """A fleet larger than planned samples shorter rollouts: the keeper writes how long, actors heed it."""

    def lengths(self, client: Client, keys: RunKeys) -> list[int]:
        return [
            len(decode_rollout(entry.fields[b"payload"], SPEC).rewards) for entry in entries(client, keys)
        ]

    def test_rollouts_are_as_long_as_the_fleet_needs_them(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            for steps, length in (("3", 3), ("999", 4), ("nonsense", 4), ("1", 1)):
                client.hset(keys.control, "rollout_steps", steps)
                running.wait_for_pushes(3)
                assert self.lengths(client, keys)[-1] == length

    def test_a_running_rollout_is_cut_where_the_fleet_has_grown(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        """The watchdog's thread does this while the main thread samples."""
        slow = environments_of(f"{FAULTS}Slow-v0", ms=300)
        with running_actor(redis_server.url, keys, slow) as running:
            wait_until(lambda: running.actor.stats.rollout_began is not None, 10, "it samples")
            client.hset(keys.control, "rollout_steps", "2")
            running.actor.set_rollout_steps(RunStore(client, keys).orders()[1])
            running.wait_for_pushes(1)
            assert self.lengths(client, keys)[0] < 4

    def test_a_memory_keeps_its_length(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        spec = make_spec(network=NetworkConfig(memory="gru", memory_size=4))
        assert spec.rollout_steps == 4
        client.hset(keys.control, "rollout_steps", "2")
        publish(leadership_of(client, keys, StopRequest(), description=make_description(spec)), spec=spec)
        build = cast(Any, lambda _boot, builds: make_collector(make_environments(), spec, seed=builds))
        with running_actor(redis_server.url, keys, build, make_description(spec)) as running:
            running.wait_for_pushes(2)
            payload = entries(client, keys)[-1].fields[b"payload"]
            assert len(decode_rollout(payload, spec).rewards) == 4

    def test_an_actor_says_how_it_steps_and_how_far_its_rollout_is(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys, environments_of(f"{FAULTS}Slow-v0", ms=5)) as running:
            running.wait_for_pushes(1)

            def said() -> ActorReport:
                return from_fields(ActorReport, report(client, keys))

            wait_until(lambda: said().vectorization == "sync", 5, "it reports")
            told = said()
            assert told.step_ms is not None
            assert 5 <= told.step_ms < 50, "one step of one environment"
            assert told.rollout_steps == 4
            assert told.rollout_s is not None
            assert told.rollout_s >= 2 * 0.005 * (told.rollout_steps_done or 0), "two environments in turn"


@pytest.mark.usefixtures("leadership")
class TestPacing:
    def test_an_actor_waits_while_the_backlog_is_high(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        allow(client, keys, 3)
        with running_actor(redis_server.url, keys) as running:
            running.wait_until_it_waits()
            assert backlog(client, keys) == 3

    def test_it_continues_as_soon_as_there_is_room(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        allow(client, keys, 1)
        with running_actor(redis_server.url, keys) as running:
            running.wait_until_it_waits()
            allow(client, keys, 3)
            wait_until(lambda: running.pushes == 3, 5, "there are two more")
            running.wait_until_it_waits()
            assert backlog(client, keys) == 3

    def test_after_waiting_it_samples_with_the_newest_weights(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
    ) -> None:
        allow(client, keys, 1)
        with running_actor(redis_server.url, keys) as running:
            running.wait_until_it_waits()
            for update in range(1, 6):
                publish(leadership, update)
            allow(client, keys, 2)
            wait_until(lambda: running.pushes == 2, 5, "there is one more")
            assert updates(client, keys) == [0, 5]

    def test_a_pause_holds_it_and_run_lets_it_go(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        store = RunStore(client, keys)
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            store.set_state(PAUSE)
            running.wait_until_it_waits()
            before = backlog(client, keys)
            running.wait_until_it_waits()
            assert backlog(client, keys) == before
            store.set_state(RUN)
            running.wait_for_pushes(1)

    @pytest.mark.parametrize("waiting", [False, True], ids=["sampling", "waiting for room"])
    def test_a_stop_ends_it(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, waiting: bool
    ) -> None:
        if waiting:
            allow(client, keys, 1)
        with running_actor(redis_server.url, keys) as running:
            wait_until(lambda: running.pushes >= 1, 5, "there is one")
            RunStore(client, keys).set_state(STOP)
            running.wait_for_the_end()

    def test_a_full_server_is_waited_out(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            with memory_limit(client):
                producer = running.actor.access.producer
                wait_until(lambda: running.alive and producer.refused_full > 2, 10, "the server refuses")
                before = backlog(client, keys)
                wait_until(lambda: running.alive and producer.refused_full > 4, 10, "it tries again")
                assert backlog(client, keys) == before
            running.wait_for_pushes(2)
        assert [parse_header(e).seq for e in entries(client, keys)] == list(
            range(1, backlog(client, keys) + 1)
        )

    def test_its_registration_survives_a_full_server(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            with memory_limit(client):
                running.actor.access.registry.beat(SLOT, ActorReport(pushes=1))
                assert report(client, keys)["host"]
                assert integer(client.pttl(keys.actor(SLOT))) > 5000

    def test_it_ends_if_a_later_process_of_its_slot_lives_and_ignores_an_earlier_one(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        """Both found the slot free and built their environments meanwhile; or this one was frozen."""
        other: dict[Any, Any] = {"host": "b", "pid": "17", "place": "another namespace"}
        client.hset(keys.actor(SLOT), mapping={**other, "boot": "9"})  # left by a process that has died
        with running_actor(redis_server.url, keys) as running:
            for boot in ("0", "9"):
                wait_until(lambda: report(client, keys)["host"] != "b" and running.alive, 5, "it beats")
                client.hset(keys.actor(SLOT), mapping={**other, "boot": boot})
            with pytest.raises(ConfigurationError, match="slot 3 was taken by a later actor, b:17"):
                running.wait_for_the_end()


@cache
def policy_of(update: int) -> ActingPolicy:
    """The policy that `publish` publishes at `update`."""
    return ActingPolicy(make_weights(SPEC, make_model(SPEC, seed=update)), SPEC)


class TestWeights:
    def test_nothing_is_sampled_before_weights_are_published(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            running.wait_until_it_waits()
            assert running.pushes == 0
            lead(client, keys, stop)
            allow(client, keys, 10)
            running.wait_for_pushes(1)

    def test_each_rollout_is_sampled_with_one_publication_the_one_it_names(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            for update in range(1, 30):
                publish(leadership, update)
                running.wait_for_pushes(1)
        seen = set()
        for entry in entries(client, keys):
            header, rollout = parse_header(entry), decode_rollout(entry.fields[b"payload"], SPEC)
            assert header.version == header.update + 1
            policy = policy_of(header.update)
            log_probs = policy.log_probs(policy.outputs(rollout.observations), rollout.actions)
            np.testing.assert_allclose(rollout.log_probs, log_probs, atol=1e-5)
            seen.add(header.version)
        assert len(seen) > 10

    def test_it_follows_a_new_learner_whose_epoch_differs_at_once(
        self,
        redis_server: RedisServer,
        client: Client,
        keys: RunKeys,
        stop: StopRequest,
        leadership: Leadership,
    ) -> None:
        leadership.lease.release()
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            lead(client, keys, stop, owner="learner-2", update=7)
            running.wait_for_pushes(3)
        header = parse_header(entries(client, keys)[-1])
        assert (header.epoch, header.update) == (2, 7)

    @pytest.mark.usefixtures("leadership")
    def test_it_keeps_its_policy_while_the_weights_are_gone(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            client.delete(keys.weights)
            running.wait_for_pushes(3)
        assert {parse_header(e).version for e in entries(client, keys)} == {1}

    def test_it_keeps_its_policy_while_the_weights_are_damaged(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            client.hset(keys.weights, mapping={"version": "2", "blob": "damaged"})
            running.wait_for_pushes(3)
            publish(leadership, update=1)
            wait_until(lambda: running.alive and updates(client, keys)[-1] == 1, 10, "it takes the next")
        assert {parse_header(e).version for e in entries(client, keys)} == {1, 3}
        assert "sha256" in running.actor.stats.last_error

    def test_a_new_run_with_another_spec_ends_the_actor_and_names_the_difference(
        self,
        redis_server: RedisServer,
        client: Client,
        keys: RunKeys,
        stop: StopRequest,
        leadership: Leadership,
    ) -> None:
        leadership.publisher.heal()
        leadership.lease.release()
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            other = make_description(make_spec(rollout_steps=7))
            successor = leadership_of(client, keys, stop, owner="learner-2", description=other)
            successor.lease.acquire(0, 1)
            successor.publisher.heal()
            publish(successor, update=1)
            with pytest.raises(ConfigurationError, match="rollout_steps: 4 != 7"):
                running.wait_for_the_end()
            assert set(updates(client, keys)) == {0}

    def test_weights_of_another_spec_are_not_played_though_the_run_is_the_same(
        self,
        redis_server: RedisServer,
        client: Client,
        keys: RunKeys,
        stop: StopRequest,
        leadership: Leadership,
    ) -> None:
        leadership.publisher.heal()
        leadership.lease.release()
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            other = make_description(make_spec(env_id="tests.envs:Truncating-v0"))
            lead(client, keys, stop, owner="learner-2", description=other, update=1)
            running.wait_for_pushes(3)
            assert set(updates(client, keys)) == {0}

    def test_an_actor_with_another_custom_network_ends_with_a_refusal(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        network = NetworkConfig(hidden=(8,), custom="tests.networks:Linear")
        description = make_description(make_spec(network=network))
        lead(client, keys, stop, description=description)  # publishes weights of another network
        says = r"network\.custom: tests\.networks:Linear on this machine is not the learner's"
        with (
            running_actor(redis_server.url, keys, description=description) as running,
            pytest.raises(ConfigurationError, match=says),
        ):
            running.wait_for_the_end()

    @pytest.mark.parametrize("damage", ["damaged", "gone"])
    def test_an_actor_without_a_policy_follows_a_stop_though_it_cannot_get_weights(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, damage: str
    ) -> None:
        client.hset(keys.weights, mapping={"epoch": "1", "version": "1"})
        if damage == "damaged":
            client.hset(keys.weights, mapping={"blob": "damaged", "sha256": "0"})
        client.config_resetstat()
        with running_actor(redis_server.url, keys) as running:
            wait_until(lambda: running.alive and commands(client, "hmget") > 4, 5, "it asks for weights")
            RunStore(client, keys).set_state(STOP)
            running.wait_for_the_end()


@pytest.mark.usefixtures("leadership")
class TestInterference:
    @pytest.mark.parametrize("name", ["weights", "control", "rollouts"])
    def test_a_key_of_another_type_is_waited_out_until_the_learner_has_put_it_right(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership, name: str
    ) -> None:
        keeper = make_keeper(client, keys, leadership)
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            client.config_resetstat()
            client.set(str(getattr(keys, name)), "of another type")
            wait_until(lambda: has_refused_a_type(client), 10, "the actor has met it")
            keeper.tick()
            keeper.tick()
            allow(client, keys, 10**6)
            running.wait_for_pushes(2)

    def test_flushall_is_waited_out(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, leadership: Leadership
    ) -> None:
        keeper = make_keeper(client, keys, leadership)
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            client.flushall()
            keeper.tick()
            allow(client, keys, 10**6)
            running.wait_for_pushes(3)
        last = parse_header(entries(client, keys)[-1])
        assert (last.epoch, last.version) == (2, 2)

    def test_a_registration_of_another_type_does_not_end_it(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys) as running:
            running.wait_for_pushes(1)
            client.set(keys.actor(SLOT), "of another type")
            running.actor.next_beat = 0.0
            running.wait_for_pushes(1)
            wait_until(
                lambda: running.pushes > 0 and client.type(keys.actor(SLOT)) == b"hash", 5, "it is back"
            )


def has_refused_a_type(client: Client) -> bool:
    """Whether some command has met a key of another type."""
    return "errorstat_WRONGTYPE" in client.info("errorstats")


def is_hash(client: Client, key: str) -> bool:
    return bool(client.type(key) == b"hash")


@pytest.mark.usefixtures("leadership")
class TestFaults:
    def test_a_rollout_with_a_nan_is_dropped_here_and_counted(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        build = environments_of(FAULTS + "NanObservation-v0", at=2)
        with running_actor(redis_server.url, keys, build) as running:
            running.wait_for_pushes(2)
            running.actor.next_beat = 0.0
            wait_until(lambda: report(client, keys).get("refused") == "1", 10, "the actor reports it")
            assert "nonfinite" in report(client, keys)["last_error"]
        for entry in entries(client, keys):
            assert np.isfinite(decode_rollout(entry.fields[b"payload"], SPEC).observations).all()

    def test_an_environment_that_raises_is_built_again(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        builds: list[int] = []
        make = environments_of(FAULTS + "RaisesInStep-v0", at=6)

        def build(boot: int, count: int) -> Any:
            builds.append(count)
            return make(boot, count)

        with running_actor(redis_server.url, keys, build) as running:
            running.wait_for_pushes(2)
        assert builds[:2] == [0, 1]
        (error,) = cast(Any, client.xrange(keys.errors, count=1))
        assert b"lost its licence" in error[1][b"error"]
        assert error[1][b"service"] == b"actor 3"

    def test_a_rollout_that_was_cut_by_a_failure_is_not_pushed(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        build = environments_of(FAULTS + "RaisesInStep-v0", at=6)
        with running_actor(redis_server.url, keys, build) as running:
            running.wait_for_pushes(2)
        assert {parse_header(entry).steps for entry in entries(client, keys)} == {STEPS}

    def test_a_stop_is_followed_though_the_environment_is_broken(
        self, redis_server: RedisServer, client: Client, keys: RunKeys
    ) -> None:
        build = environments_of(FAULTS + "RaisesInReset-v0", at=1)
        with running_actor(redis_server.url, keys, build) as running:
            wait_until(lambda: running.actor.failure_count.failures > 0, 5, "it fails")
            RunStore(client, keys).set_state(STOP)
            running.wait_for_the_end()


@pytest.mark.parametrize("fault", ["RaisesInStep-v0", "RaisesInReset-v0"])
def test_after_five_failures_in_a_row_the_environment_is_called_broken(
    private_server: RedisServer,
    private_client: Client,
    keys: RunKeys,
    stop: StopRequest,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    lead(private_client, keys, stop)
    pauses: list[float] = []
    monkeypatch.setattr(StopRequest, "sleep", lambda _self, seconds: pauses.append(seconds))
    with (
        running_actor(private_server.url, keys, environments_of(FAULTS + fault, at=1)) as running,
        pytest.raises(EnvironmentBrokenError, match=r"5 times.*lost its licence"),
    ):
        running.wait_for_the_end()
    assert pauses == sorted(pauses)
    assert len(pauses) == 4
    with opened(private_server.url) as client:
        assert integer(client.xlen(keys.errors)) == 5
