"""Lock-step mode with a real learner and real actors: bit-equal to the serial baseline, whatever happens."""

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.rollout_stream import parse_header
from dppo_redis.store.run_store import PAUSE, RUN, RunStore
from learner.leadership.leadership import Leadership
from tests.conftest import RedisServer, wait_until
from tests.factories import TERMINATING, make_description
from tests.integration.actor_side import PATIENCE_S, environments_of, running_actor
from tests.integration.learner_side import SPEC, lead, make_entry, publish
from tests.integration.lock_step_side import (
    DEADLINE_S,
    SEGMENT,
    UPDATES,
    Fleet,
    assert_bit_equal,
    config_of,
    describe,
    fleet_state,
    has_pushed,
    have_pushed,
    serial_state,
)
from tests.integration.looking import hash_of, ledger_of
from tests.integration.workers.test_actor import entries
from workers.__main__ import _serve as serve_actor
from workers.sampling.rollout_collector import RolloutCollector

MakeFleet = Callable[[RunConfig], Fleet]


@pytest.fixture
def fleet(private_server: RedisServer, private_client: Client, tmp_path: Path) -> MakeFleet:
    """Makes fleets that share a server, each with a run and a directory of its own."""

    def make(config: RunConfig) -> Fleet:
        keys = RunKeys(f"test-{secrets.token_hex(4)}")
        directory = tmp_path / keys.run
        directory.mkdir()
        return Fleet(private_server, private_client, keys, directory, config)

    return make


class TestEquality:
    @pytest.mark.parametrize("rollouts", [1, 2])
    def test_three_actors_equal_the_serial_baseline_in_any_order_of_arrival(
        self, fleet: MakeFleet, rollouts: int
    ) -> None:
        config = config_of(UPDATES, rollouts=rollouts)
        expected = serial_state(config, UPDATES)
        assert_bit_equal(fleet(config).train(2, 1, 0, late_s=0.02), expected)
        assert_bit_equal(fleet(config).train(0, 1, 2), expected)

    @pytest.mark.parametrize(
        "network",
        [{"memory": "lstm", "memory_size": 4}, {"memory": "gru"}, {"custom": "tests.networks:Noisy"}],
        ids=["lstm", "gru", "custom"],
    )
    def test_images_frames_and_every_kind_of_network_equal_the_serial_baseline(
        self, fleet: MakeFleet, network: dict[str, Any]
    ) -> None:
        """Networks that need torch; memory and frames travel, also over a segment's start."""
        updates = SEGMENT + 2
        config = config_of(updates, actors=2, env_id="tests.envs:Named-v0", network=network, frame_stack=2)
        assert_bit_equal(fleet(config).train(1, 0), serial_state(config, updates))

    @pytest.mark.parametrize(("fault", "at"), [("NanObservation", 20), ("RaisesInStep", 40)])
    def test_environments_that_break_in_each_segment_equal_the_serial_baseline(
        self, fleet: MakeFleet, fault: str, at: int
    ) -> None:
        """A rollout that is not finite is replaced by the next one, environments that raise by others."""
        config = config_of(
            SEGMENT + 2, actors=2, env_id=f"tests.envs:{fault}-v0", env_kwargs={"at": at, "length": 30}
        )
        assert_bit_equal(fleet(config).train(1, 0), serial_state(config, SEGMENT + 2))

    def test_one_actor_equals_plain_serial_training_for_a_segment(self, fleet: MakeFleet) -> None:
        config = config_of(SEGMENT, actors=1)
        plain = config.model_copy(update={"lock_step": False})
        assert_bit_equal(fleet(config).train(0), serial_state(plain, SEGMENT))

    def test_staleness_is_0_and_each_slot_gives_as_much(self, fleet: MakeFleet) -> None:
        run = fleet(config_of(UPDATES))
        run.train(0, 1, 2)
        ledger = ledger_of(run.client, run.keys)
        assert ledger["trained"] == 3 * UPDATES
        assert not {"stale", "duplicate", "refused"} & ledger.keys()
        status = hash_of(run.client, run.keys.status)
        assert (status["staleness_max"], status["staleness_limit"], status["backlog_high"]) == ("0", "0", "3")

    def test_another_seed_gives_other_weights(self) -> None:
        config = config_of(2)
        other = config.model_copy(update={"seed": 2})
        with pytest.raises(AssertionError):
            assert_bit_equal(serial_state(config, 2), serial_state(other, 2))


class TestResume:
    @pytest.mark.parametrize(
        "updates", [SEGMENT, SEGMENT + 2], ids=["at a segment's start", "amid a segment"]
    )
    def test_n_updates_and_a_resume_and_n_more_equal_2n_updates(self, fleet: MakeFleet, updates: int) -> None:
        run = fleet(config_of(updates))
        run.train(0, 1, 2)
        RunStore(run.client, run.keys).reopen()
        run.config = config_of(2 * updates)
        assert_bit_equal(run.train(2, 0, 1), serial_state(run.config, 2 * updates))

    def test_a_learner_that_is_stopped_amid_a_segment_and_restarted_continues_exactly(
        self, fleet: MakeFleet
    ) -> None:
        """Its actors live on, hold rollouts of updates that are made again, and go back with it."""
        run = fleet(config_of(3 * UPDATES))
        with run.actors(0, 1, 2, late_s=0.02):
            with run.learner():
                run.reaches(SEGMENT + 1)
            with run.learner() as end:
                assert end() is ExitStatus.DONE
        assert_bit_equal(fleet_state(run.directory), serial_state(run.config, 3 * UPDATES))


class TestInterference:
    """Lost rollouts are sent again unchanged."""

    def hurt(self, run: Fleet, wound: Callable[[], object]) -> None:
        with run.learner() as end, run.actors(0, 1, 2, late_s=0.02):
            for update in (2, 7, 11):
                run.reaches(update)
                wound()
            assert end() is ExitStatus.DONE
        assert_bit_equal(fleet_state(run.directory), serial_state(run.config, 2 * UPDATES))

    def test_a_flushed_server(self, fleet: MakeFleet) -> None:
        run = fleet(config_of(2 * UPDATES))
        self.hurt(run, run.client.flushall)

    def test_a_deleted_stream(self, fleet: MakeFleet) -> None:
        run = fleet(config_of(2 * UPDATES))
        self.hurt(run, lambda: run.client.delete(run.keys.rollouts))

    def test_a_pause(self, fleet: MakeFleet) -> None:
        run = fleet(config_of(2 * UPDATES))
        store = RunStore(run.client, run.keys)

        def pause() -> None:
            store.set_state(PAUSE)
            time.sleep(0.3)  # for the learner and the actors to notice
            store.set_state(RUN)

        self.hurt(run, pause)

    def test_the_learner_asks_again_for_lost_rollouts(self, fleet: MakeFleet) -> None:
        """An entry vanishes unread; the learner cannot know whose it was, so all send theirs again."""
        run = fleet(config_of(2))
        with run.learner() as end, run.actors(0, 1) as actors:
            have_pushed(actors)
            pipeline = run.client.pipeline(transaction=True)
            pipeline.xadd(run.keys.rollouts, make_entry(actor=2), id="9999999999999-0")
            pipeline.xdel(run.keys.rollouts, "9999999999999-0")
            pipeline.execute()
            wait_until(
                lambda: ledger_of(run.client, run.keys).get("duplicate", 0) == 2,
                DEADLINE_S,
                "both have sent theirs again",
            )
            with run.actors(2):
                assert end() is ExitStatus.DONE
        assert ledger_of(run.client, run.keys)["lost"] == 1
        assert_bit_equal(fleet_state(run.directory), serial_state(run.config, 2))


class TestActors:
    def test_an_actor_that_dies_in_the_first_update_of_a_segment_changes_nothing(
        self, fleet: MakeFleet
    ) -> None:
        run = fleet(config_of(UPDATES))
        with run.learner() as end:
            with run.actors(0, 1) as actors:
                have_pushed(actors)
            with run.actors(1, 0) as successors:
                have_pushed(successors)
                with run.actors(2):
                    assert end() is ExitStatus.DONE
        assert ledger_of(run.client, run.keys)["refused:surplus"] == 2
        assert_bit_equal(fleet_state(run.directory), serial_state(run.config, UPDATES))

    def test_training_continues_with_an_actor_that_died_later_and_came_back(self, fleet: MakeFleet) -> None:
        run = fleet(config_of(3 * UPDATES))
        with run.learner() as end, run.actors(0, 1, late_s=0.02):
            with run.actors(2):
                run.reaches(2)
            with run.actors(2):
                assert end() is ExitStatus.DONE
        assert ledger_of(run.client, run.keys)["trained"] == 9 * UPDATES

    def test_a_rollout_of_an_unplanned_slot_is_refused_by_that_name(self, fleet: MakeFleet) -> None:
        run = fleet(config_of(2, actors=1))
        with run.learner() as end:
            wait_until(lambda: run.client.exists(run.keys.weights) == 1, DEADLINE_S, "weights")
            with running_actor(
                run.server.url, run.keys, partial(run._build, 7, 0.0), run.description, 7
            ) as stranger:
                have_pushed([stranger])
                wait_until(lambda: "refused" in ledger_of(run.client, run.keys), DEADLINE_S, "refused")
            with run.actors(0):
                assert end() is ExitStatus.DONE
        ledger = ledger_of(run.client, run.keys)
        assert (ledger["refused:unplanned_slot"], ledger["trained"]) == (1, 2)
        assert_bit_equal(fleet_state(run.directory), serial_state(run.config, 2))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "takes no more than the 3 actors"),
            (("--slot", "3"), "takes no more than the 3 actors"),
            (("--slot", "0", "--envs-per-actor", "5"), "2 environments in each actor"),
        ],
    )
    def test_an_actor_without_a_place_is_refused_and_takes_no_slot(
        self, client: Client, redis_server: RedisServer, keys: RunKeys, stop: StopRequest,
        arguments: Sequence[str], message: str,
    ) -> None:  # fmt: skip
        description = describe(config_of(1))
        client.set(keys.spec, description.to_text())
        with pytest.raises(ConfigurationError, match=message):
            serve_actor(["--run", keys.run, "--redis", redis_server.url, *arguments], stop)
        assert client.exists(keys.boots) == 0


TWO_EACH = make_description(SPEC, lock_step=LockStep(actors=9, rollouts=2, segment_updates=2))


class TestOneActor:
    """An actor on a server, and a test that publishes in the learner's place."""

    @pytest.fixture
    def leadership(self, client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
        return lead(client, keys, stop)

    @pytest.mark.usefixtures("leadership")
    def test_it_samples_the_planned_rollouts_and_then_waits_at_any_backlog(
        self, client: Client, redis_server: RedisServer, keys: RunKeys
    ) -> None:
        with running_actor(redis_server.url, keys, description=TWO_EACH) as running:
            has_pushed(running, 2)
            client.delete(keys.control)
            client.xtrim(keys.rollouts, maxlen=0)
            running.wait_until_it_waits()
            assert running.pushes == 2

    def test_the_same_weights_under_another_version_make_it_send_the_same_again(
        self, client: Client, redis_server: RedisServer, keys: RunKeys, leadership: Leadership
    ) -> None:
        with running_actor(redis_server.url, keys, description=TWO_EACH) as running:
            has_pushed(running, 2)
            publish(leadership, update=0)
            wait_until(lambda: client.xlen(keys.rollouts) == 4, PATIENCE_S, "both are there twice")
            running.wait_until_it_waits()
            assert running.pushes == 2
        found = entries(client, keys)
        headers = [parse_header(entry) for entry in found]
        assert [header.seq for header in headers] == [1, 2, 1, 2]
        assert [header.version for header in headers] == [1, 1, 2, 2]
        assert [found[i].fields[b"payload"] for i in (0, 1)] == [found[i].fields[b"payload"] for i in (2, 3)]

    def test_environments_are_rebuilt_at_each_segment_and_after_a_missed_update(
        self, redis_server: RedisServer, keys: RunKeys, leadership: Leadership
    ) -> None:
        built: list[tuple[int, int]] = []
        sound = environments_of(TERMINATING)

        def build(boot: int, builds: int) -> RolloutCollector:
            built.append((boot, builds))
            return sound(boot, builds)

        with running_actor(redis_server.url, keys, build, TWO_EACH) as running:
            has_pushed(running, 2)
            for already, update in enumerate((1, 2, 3, 7, 3), start=1):
                publish(leadership, update)
                has_pushed(running, 2 * already + 2)
        assert built == [(1, 0), (3, 0), (8, 0), (4, 0)]  # 1 + the updates 0, 2, 7 and 3

    @pytest.mark.usefixtures("leadership")
    def test_a_rollout_that_it_refuses_itself_is_replaced_by_the_next(
        self, client: Client, redis_server: RedisServer, keys: RunKeys
    ) -> None:
        build = environments_of("tests.envs:NanObservation-v0", at=2)
        with running_actor(redis_server.url, keys, build, TWO_EACH) as running:
            has_pushed(running, 2)
            running.wait_until_it_waits()
            assert running.actor.failure_count.refused > 0
        assert [parse_header(entry).seq for entry in entries(client, keys)] == [1, 2]

    @pytest.mark.usefixtures("leadership")
    def test_environments_that_broke_are_replaced_by_others_for_the_same_update(
        self, redis_server: RedisServer, keys: RunKeys
    ) -> None:
        built: list[tuple[int, int]] = []
        faulty, sound = environments_of("tests.envs:RaisesInStep-v0", at=2), environments_of(TERMINATING)

        def build(boot: int, builds: int) -> RolloutCollector:
            built.append((boot, builds))
            return (sound if builds else faulty)(boot, builds)

        with running_actor(redis_server.url, keys, build, TWO_EACH) as running:
            has_pushed(running, 2)
        assert built == [(1, 0), (1, 1)]
