"""The small keys of a run and the registry of its actors, on a real server."""

import os
import socket
import subprocess
import sys
import time

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.report_fields import to_fields
from dppo_redis.protocol.reports import ActorReport, Control, Evaluation, EvaluatorReport
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.shutdown import StopRequest, pid_scope
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.keys import RUNS, RunKeys
from dppo_redis.store.registry import ACTOR_TTL_MS, FIRST_OUTSIDE_SLOT, Registry
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_status import read_status
from dppo_redis.store.run_store import (
    PAUSE,
    RUN,
    STOP,
    RunStore,
    find_runs,
    list_run,
    missing_run,
    only_run,
)
from learner.leadership.lease import LEASE_TTL_S
from ops.commands.quarantine import main as quarantine_command
from ops.commands.status import main as status_command
from ops.fleet.shared_redis import leave_shared
from tests.conftest import RedisServer, wait_until
from tests.factories import make_description
from tests.integration.learner_side import SPEC, add, in_background, lead, make_entry, make_keeper
from tests.integration.looking import commands, hash_of, integer
from workers.join import refuse_living_holder, wait_for_description

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture
def store(client: Client, keys: RunKeys) -> RunStore:
    return RunStore(client, keys)


@pytest.fixture
def registry(client: Client, keys: RunKeys) -> Registry:
    return Registry(client, keys)


class TestRuns:
    def test_runs_on_one_server_share_no_key(self, client: Client, stop: StopRequest) -> None:
        for run in ("a", "ab", "a.b"):
            keys = RunKeys(run)
            make_keeper(client, keys, lead(client, keys, stop)).tick()
        RunStore(client, RunKeys("a")).delete()
        assert find_runs(client) == ["a.b", "ab"]
        assert not RunStore(client, RunKeys("a")).exists()
        assert RunStore(client, RunKeys("ab")).exists()

    def test_the_only_run_is_found_by_itself(self, client: Client, keys: RunKeys, stop: StopRequest) -> None:
        with pytest.raises(ConfigurationError, match="this Redis has no run: check the URL"):
            only_run(client)
        make_keeper(client, keys, lead(client, keys, stop)).tick()
        assert only_run(client) == keys.run

    def test_a_command_must_name_one_of_several_runs(self, client: Client, stop: StopRequest) -> None:
        for run in ("one", "two"):
            make_keeper(client, RunKeys(run), lead(client, RunKeys(run), stop)).tick()
        with pytest.raises(ConfigurationError, match="one, two"):
            only_run(client)

    def test_the_error_about_a_missing_run_names_the_most_similar_runs(
        self, private_client: Client, stop: StopRequest
    ) -> None:
        absent = str(missing_run(private_client, "walker"))
        assert absent.startswith(
            "this Redis has no run walker and no other run: check the URL, or start a run"
        )
        for run in ("hopper", "walker-2"):
            make_keeper(private_client, RunKeys(run), lead(private_client, RunKeys(run), stop)).tick()
        told = str(missing_run(private_client, "walker"))
        assert told == "this Redis has no run walker; it has: walker-2, hopper (did you mean walker-2?)"
        list_run(private_client, "not-there-any-more")
        assert RunStore(private_client, RunKeys("hopper")).other_runs() == ["walker-2"]

    def test_an_actor_learns_from_the_spec_key_what_the_learner_published(
        self, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        assert store.description() is None
        description = make_description(seed=7)
        make_keeper(client, keys, lead(client, keys, stop, description=description)).tick()
        assert store.description() == description

    def test_an_actor_waits_for_a_living_learner_to_mend_the_spec_key(
        self, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        leadership = lead(client, keys, stop)
        client.set(keys.spec, "junk")
        with in_background(lambda: wait_for_description(store, RetryLoop(stop), stop), stop) as joining:
            looks = commands(client, "get")
            wait_until(lambda: joining.done() or commands(client, "get") > looks + 2, 5, "it has looked")
            leadership.publisher.heal()
            assert joining.result(5) == make_description(SPEC)

    def test_an_actor_gives_up_if_the_key_is_not_repaired(
        self, private_client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        private_client.set(keys.spec, "junk")
        with pytest.raises(ConfigurationError, match="unreadable"):
            wait_for_description(RunStore(private_client, keys), RetryLoop(stop), stop)

    def test_a_finished_run_keeps_its_numbers_for_a_week_but_no_rollouts(
        self, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        leadership = lead(client, keys, stop)
        add(client, keys, make_entry())
        make_keeper(client, keys, leadership).tick()
        leadership.lease.release()
        store.retire()
        assert integer(client.exists(keys.rollouts)) == 0
        for key in (keys.spec, keys.weights, keys.status, keys.epoch):
            assert WEEK_MS - 10_000 < integer(client.pttl(key)) <= WEEK_MS

    def test_a_name_is_taken_by_one_of_those_that_want_it_at_the_same_time(self, store: RunStore) -> None:
        assert [store.claim(), store.claim()] == [True, False]
        assert store.control() == Control(RUN, "", None)

    def test_a_command_that_fails_leaves_the_keys_of_a_run_that_another_learner_leads(
        self, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        leadership = lead(client, keys, stop)
        keeper = make_keeper(client, keys, leadership)
        keeper.start()
        leave_shared(store, failed=True)
        assert store.control() == Control(RUN, "", None)
        assert integer(client.pttl(keys.weights)) == -1
        keeper.close()
        leadership.lease.release()
        leave_shared(store, failed=True)
        assert store.control() == Control(STOP, "failed", None)
        assert integer(client.pttl(keys.weights)) > 0

    def test_a_reopened_run_runs_and_its_keys_stay(
        self, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        lead(client, keys, stop).lease.release()
        store.set_state(STOP, "total_steps")
        store.retire()
        store.reopen()
        assert store.control() == Control(RUN, "", None)
        assert integer(client.pttl(keys.weights)) == -1

    def test_the_keys_of_a_dead_learner_and_of_dead_actors_still_expire(
        self, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        lead(client, keys, stop)  # and dies without handing the lease back
        Registry(client, keys).beat(0, ActorReport())
        store.retire()
        store.reopen()
        assert 0 < integer(client.pttl(keys.lease)) <= 1000 * LEASE_TTL_S
        assert 0 < integer(client.pttl(keys.actor(0))) <= ACTOR_TTL_MS


class TestBesideAMillionOtherKeys:
    """Known key names are not scanned for, because a scan takes longer with each key of the server."""

    def test_a_run_begins_ends_and_shows_its_status_without_scanning_keys(
        self, redis_server: RedisServer, client: Client, keys: RunKeys, store: RunStore, stop: StopRequest
    ) -> None:
        before = commands(client, "scan")
        assert not store.exists()
        make_keeper(client, keys, lead(client, keys, stop)).tick()
        Registry(client, keys).join(3)
        Registry(client, keys).beat(3, ActorReport())
        assert store.exists()
        for look in (status_command, quarantine_command):
            for which in (["--run", keys.run], []):
                look([*which, "--redis", redis_server.url, "--json"])
        store.retire()
        store.reopen()
        store.delete()
        assert list(client.scan_iter(match=keys.pattern)) == []
        assert find_runs(client) == []
        assert commands(client, "scan") - before <= 2, "the test's own, and one where no run is listed"

    def test_the_list_of_runs_is_put_back_and_may_be_anything(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        client.set(RUNS, "of another type")
        leadership = lead(client, keys, stop)
        make_keeper(client, keys, leadership).tick()
        assert find_runs(client) == [keys.run], "searched for"
        client.delete(RUNS)
        client.zadd(RUNS, {"no run, but a text": 1, "of-an-older-run": 1})
        leadership.publisher._listing = RateLimit()
        make_keeper(client, keys, leadership).tick()
        assert find_runs(client) == [keys.run]


class TestControl:
    def test_without_control_a_run_is_in_state_run(self, store: RunStore) -> None:
        assert store.control() == Control(RUN, "", None)

    def test_a_control_state_is_read_back(self, store: RunStore) -> None:
        store.set_state(STOP, "target", 1234)
        assert store.control() == Control(STOP, "target", 1234)
        store.set_state(PAUSE)
        assert store.control() == Control(PAUSE, "", None)

    def test_the_keepers_backlog_limit_keeps_the_operators_state(
        self, client: Client, keys: RunKeys, stop: StopRequest, store: RunStore
    ) -> None:
        store.set_state(PAUSE)
        lead(client, keys, stop).publisher.write_pace(3, 5)
        assert store.control().state == PAUSE

    def test_no_process_ends_because_of_mistyped_control_fields(
        self, client: Client, keys: RunKeys, store: RunStore
    ) -> None:
        client.hset(keys.control, mapping={"state": "stop", "target_step": "soon", "backlog_high": "many"})
        assert store.control().state == STOP
        producer = RolloutProducer(client, keys, StopRequest())
        assert (producer.read_pacing().state, producer.read_pacing().backlog_high) == (STOP, 1)
        client.hset(keys.control, "state", b"\xff")
        assert producer.read_pacing().state not in (STOP, PAUSE)


class TestEvaluation:
    RESULT = Evaluation(
        version=3,
        update=2,
        trained_steps=128,
        settled_steps=130,
        return_mean=21.5,
        return_std=0.5,
        length_mean=21.5,
        episodes=20,
    )

    def test_an_evaluation_is_read_back(self, store: RunStore) -> None:
        assert store.evaluation() is None
        store.write_evaluation(to_fields(self.RESULT))
        assert store.evaluation() == self.RESULT

    def test_the_evaluators_report_keeps_the_evaluation(
        self, client: Client, keys: RunKeys, store: RunStore
    ) -> None:
        report = EvaluatorReport(2, 1, "step raised", "", playing=True, played=7, to_play=20)
        store.write_evaluation(to_fields(self.RESULT), report)
        assert (store.evaluation(), store.evaluator()) == (self.RESULT, report)
        store.write_evaluator(EvaluatorReport())
        assert (store.evaluation(), store.evaluator()) == (self.RESULT, EvaluatorReport())
        assert integer(client.xlen(keys.metrics)) == 1

    def test_an_evaluation_is_added_to_the_metrics_stream(
        self, client: Client, keys: RunKeys, store: RunStore
    ) -> None:
        store.write_evaluation(to_fields(self.RESULT))
        assert integer(client.xlen(keys.metrics)) == 1

    @pytest.mark.parametrize("field", ["version", "return_mean"])
    def test_a_damaged_evaluation_is_read_as_none(
        self, client: Client, keys: RunKeys, store: RunStore, field: str
    ) -> None:
        store.write_evaluation(to_fields(self.RESULT))
        client.hset(keys.evaluation, field, "good")
        assert store.evaluation() is None


class TestActors:
    def test_boots_of_a_slot_are_counted(self, registry: Registry) -> None:
        assert [registry.join(2), registry.join(2), registry.join(0)] == [(2, 1), (2, 2), (0, 1)]

    def test_actors_from_outside_take_slots_that_no_planned_one_has(self, registry: Registry) -> None:
        assert [registry.join(None) for _ in range(2)] == [
            (FIRST_OUTSIDE_SLOT, 1),
            (FIRST_OUTSIDE_SLOT + 1, 1),
        ]

    def test_actors_that_come_and_go_leave_one_number_and_all_count_as_joined(
        self, client: Client, keys: RunKeys, registry: Registry
    ) -> None:
        for slot in (None, 0, None, 0, None):
            registry.join(slot)
        assert client.hgetall(keys.boots) == {b"next": b"3", b"0": b"2"}
        assert registry.joined() == 4

    def test_an_actor_that_takes_a_slot_from_outside_again_is_a_later_boot(self, registry: Registry) -> None:
        slot, boot = registry.join(None)
        assert [registry.join(slot), registry.join(slot)] == [(slot, boot + 1), (slot, boot + 2)]
        assert registry.joined() == 1

    def test_an_actor_that_beats_lives_and_says_where(self, registry: Registry) -> None:
        registry.beat(3, ActorReport(pushes=7))
        assert registry.living()[3]["pushes"] == "7"
        assert {"host", "pid"} <= registry.living()[3].keys()

    def test_an_actor_that_has_stopped_beating_vanishes_by_itself(
        self, client: Client, keys: RunKeys, registry: Registry
    ) -> None:
        registry.beat(3, ActorReport(pushes=7))
        registry.beat(4, ActorReport(pushes=1))
        assert 0 < integer(client.pttl(keys.actor(3))) <= ACTOR_TTL_MS
        client.pexpire(keys.actor(3), 1)
        wait_until(lambda: list(registry.living()) == [4], 5, "the registration expires")
        registry.forget_dead(registry.living())
        assert integer(client.zcard(keys.actors)) == 1

    def test_an_actor_that_leaves_is_gone_at_once(
        self, client: Client, keys: RunKeys, registry: Registry
    ) -> None:
        registry.beat(3, ActorReport(boot=1))
        registry.leave(3, boot=1)
        assert registry.living() == {}
        assert integer(client.exists(keys.actors, keys.actor(3))) == 0

    def test_an_actor_that_leaves_does_not_take_its_successor_with_it(self, registry: Registry) -> None:
        registry.beat(3, ActorReport(boot=2))
        registry.leave(3, boot=1)
        assert list(registry.living()) == [3]

    def test_the_status_counts_the_living(self, client: Client, keys: RunKeys, stop: StopRequest) -> None:
        keeper = make_keeper(client, keys, lead(client, keys, stop))
        for slot in (1, 2, 3):
            Registry(client, keys).beat(slot, ActorReport(wait_share=0.3 * slot))
        client.delete(keys.actor(2))
        keeper.tick()
        status = hash_of(client, keys.status)
        assert status["actors"] == "2"
        assert float(status["actor_wait_share"]) == pytest.approx(0.6)

    def test_an_actor_whose_registration_stands_still_is_not_counted_though_it_does_not_run_out(
        self, client: Client, keys: RunKeys, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server's clock was set back after the actor had died."""
        now = time.monotonic()
        for slot in (1, 2):
            registry.beat(slot, ActorReport(boot=1))
            client.pexpire(keys.actor(slot), 300_000)
        keeper_of = Registry(client, keys)
        assert list(keeper_of.end_silent(keeper_of.living())) == [1, 2]
        monkeypatch.setattr("dppo_redis.store.registry.time.monotonic", lambda: now + 20)
        monkeypatch.setattr("dppo_redis.store.registry.time.time", lambda: now + 20)
        registry.beat(1, ActorReport(boot=1))
        assert list(keeper_of.end_silent(keeper_of.living())) == [1]
        assert list(registry.living()) == [1]


class TestClocks:
    """Of the clocks of learner, reader and server only the server's counts."""

    @pytest.mark.parametrize("ahead_s", [-86_400.0, 86_400.0])
    def test_the_age_of_a_status_is_that_of_the_servers_clock(
        self,
        client: Client,
        keys: RunKeys,
        stop: StopRequest,
        monkeypatch: pytest.MonkeyPatch,
        ahead_s: float,
    ) -> None:
        now = time.time()
        monkeypatch.setattr("learner.leadership.keeper.time.time", lambda: now + ahead_s)
        make_keeper(client, keys, lead(client, keys, stop)).tick()
        monkeypatch.undo()
        age_s = read_status(client, keys).age_s
        assert age_s is not None
        assert 0 <= age_s < 2
        client.hset(keys.status, "server_time", now - 30)  # frozen since then
        assert read_status(client, keys).age_s == pytest.approx(30, abs=2)

    def test_an_older_learners_status_is_judged_by_what_it_has(
        self, client: Client, keys: RunKeys, stop: StopRequest
    ) -> None:
        make_keeper(client, keys, lead(client, keys, stop)).tick()
        client.hdel(keys.status, "server_time")
        age_s = read_status(client, keys).age_s
        assert age_s is not None
        assert age_s < 2


class TestSlots:
    """`actor --slot` with a slot that has a registration."""

    def registered(self, client: Client, keys: RunKeys, host: str, pid: int) -> None:
        client.hset(keys.actor(2), mapping={"host": host, "pid": str(pid), "boot": "1"})
        client.pexpire(keys.actor(2), ACTOR_TTL_MS)

    def test_the_slot_of_a_living_actor_is_refused_with_its_holders_name(
        self, client: Client, keys: RunKeys, registry: Registry, stop: StopRequest
    ) -> None:
        self.registered(client, keys, "elsewhere", 17)

        def beat() -> None:
            while not stop.requested:
                client.hset(keys.actor(2), "time", time.time())
                stop.sleep(0.5)

        with (
            in_background(beat, stop),
            pytest.raises(ConfigurationError, match="slot 2 belongs to a living actor, elsewhere:17"),
        ):
            refuse_living_holder(registry, 2, RetryLoop(stop), stop)

    @pytest.mark.parametrize("number", ["ours", "nobody's"])
    def test_the_slot_of_an_actor_in_another_pid_namespace_is_refused_even_with_the_same_host_and_pid(
        self, client: Client, keys: RunKeys, registry: Registry, stop: StopRequest, number: str
    ) -> None:
        """Two containers with one host name: each has a process of that number."""
        gone = subprocess.Popen(["true"])
        gone.wait()
        self.registered(client, keys, socket.gethostname(), os.getpid() if number == "ours" else gone.pid)
        client.hset(keys.actor(2), "place", "another namespace")

        def beat() -> None:
            while not stop.requested:
                client.hset(keys.actor(2), "time", time.time())
                stop.sleep(0.5)

        with in_background(beat, stop), pytest.raises(ConfigurationError, match="slot 2 belongs"):
            refuse_living_holder(registry, 2, RetryLoop(stop), stop)

    def test_a_dead_process_of_this_namespace_is_known_by_what_it_registered(
        self, redis_server: RedisServer, keys: RunKeys, registry: Registry, stop: StopRequest
    ) -> None:
        program = (
            "import sys\n"
            "from dppo_redis.protocol.reports import ActorReport\n"
            "from dppo_redis.store.client import connect\n"
            "from dppo_redis.store.keys import RunKeys\n"
            "from dppo_redis.store.registry import Registry\n"
            "Registry(connect(sys.argv[1], 'a'), RunKeys(sys.argv[2])).beat(2, ActorReport(boot=1))"
        )
        subprocess.run([sys.executable, "-c", program, redis_server.url, keys.run], check=True)
        started = time.monotonic()
        refuse_living_holder(registry, 2, RetryLoop(stop), stop)
        assert time.monotonic() - started < 1
        holder = registry.holder(2)
        assert holder is not None
        assert holder.place == pid_scope()

    def test_the_slot_of_an_actor_that_stopped_renewing_is_free_after_some_readings(
        self, client: Client, keys: RunKeys, registry: Registry, stop: StopRequest
    ) -> None:
        self.registered(client, keys, "elsewhere", 17)
        refuse_living_holder(registry, 2, RetryLoop(stop), stop)

    def test_the_slot_of_a_process_that_died_on_this_machine_is_free_at_once(
        self, client: Client, keys: RunKeys, registry: Registry, stop: StopRequest
    ) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        self.registered(client, keys, socket.gethostname(), gone.pid)
        started = time.monotonic()
        refuse_living_holder(registry, 2, RetryLoop(stop), stop)
        refuse_living_holder(registry, 3, RetryLoop(stop), stop)
        assert time.monotonic() - started < 1
