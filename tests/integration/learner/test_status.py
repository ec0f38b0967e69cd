"""`:status` of a learner in each of its states, on a real server."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import tomli_w

from dppo_redis.protocol.reports import ActorReport, LearnerStatus
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_status import RunStatus, read_status
from dppo_redis.store.run_store import PAUSE, RUN, RunStore
from learner.__main__ import _serve
from tests.conftest import RedisServer, wait_until
from tests.integration.actor_side import SLOT, running_actor
from tests.integration.learner.test_learner import BATCH, ENDLESS, config_of, description_of
from tests.integration.learner_side import add, in_background, make_entry
from workers.build import build_collector

DEADLINE_S = 60.0  # of a machine with other things to do
DESCRIPTION = description_of(config_of(ENDLESS))


@dataclass
class RunningLearner:
    """A learner in a thread, without actors."""

    server: RedisServer
    client: Client
    keys: RunKeys
    directory: Path

    @property
    def status(self) -> RunStatus:
        return read_status(self.client, self.keys)

    def status_when(self, holds: Callable[[LearnerStatus], bool], what: str) -> RunStatus:
        """The first status for which `holds` is true."""
        found: list[RunStatus] = []

        def reached() -> bool:
            found.append(self.status)
            return found[-1].age_s is not None and holds(found[-1].learner)

        wait_until(reached, DEADLINE_S, what)
        return found[-1]

    @contextmanager
    def with_actor(self) -> Iterator[None]:
        """With an actor, while the block lasts."""
        build = partial(build_collector, DESCRIPTION, None, SLOT)
        with running_actor(self.server.url, self.keys, build, DESCRIPTION):
            yield


@contextmanager
def learning(
    server: RedisServer, client: Client, keys: RunKeys, directory: Path, total_steps: int = ENDLESS
) -> Iterator[RunningLearner]:
    values = config_of(total_steps).model_dump(exclude_none=True, mode="json")
    (directory / "config.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    argv = ["--run", keys.run, "--run-dir", str(directory), "--redis", server.url]
    stop = StopRequest()
    with in_background(lambda: _serve(argv, stop), stop):
        yield RunningLearner(server, client, keys, directory)


def test_it_waits_until_the_first_rollout_then_trains_and_has_finished_at_the_end(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    with learning(private_server, private_client, keys, tmp_path, total_steps=200 * BATCH) as run:
        first = run.status_when(lambda learner: learner.checkpoint_update == 0, "it has begun").learner
        assert (first.state, first.update, first.trained_steps, first.train_s) == ("waiting", 0, 0, 0.0)
        assert (first.return_mean, first.target_return, first.save_failures) == (None, None, 0)
        assert (first.budget_steps, first.staleness_limit, first.device) == (200 * BATCH, 4, "cpu")
        with run.with_actor():
            status = run.status_when(lambda learner: learner.update > 0, "an update")
            assert status.learner.trained_steps == BATCH * status.learner.update
            assert status.learner.state == "training"
            assert (status.learner.alarm, status.learner.dropped_by_actor) == ("", "")
            assert (status.learner.train_s > 0, status.learner.steps_per_s > 0) == (True, True)
            last = run.status_when(lambda learner: learner.state == "finished", "the end")
    end = run.status.learner
    assert end.state == last.learner.state
    assert (end.update, end.checkpoint_update) == (200, 200)
    assert (end.trained_steps, end.staleness_max <= 4) == (200 * BATCH, True)
    assert 0 < end.learner_wait_share < 1
    assert end.return_mean is not None
    assert run.status.ledger_summary.imbalance == 0


def test_a_learner_without_actors_says_from_the_first_seconds_that_it_waits(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    """And so does one that goes on from a checkpoint; a first rate counts the sampling of the rollout."""
    for _ in range(2):
        with learning(private_server, private_client, keys, tmp_path) as run:
            first = run.status_when(lambda learner: learner.learner_wait_share > 0, "it waits").learner
            assert first.learner_wait_share > 0.9
            assert first.steps_per_s_recent == 0


def test_the_first_rate_counts_the_time_of_the_first_rollout(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    with learning(private_server, private_client, keys, tmp_path) as run:
        run.status_when(lambda learner: learner.learner_wait_share > 0, "it waits")
        Registry(private_client, keys).beat(SLOT + 1, ActorReport(boot=1, rollout_s=30.0))
        wait_until(lambda: run.status.learner.learner_wait_share > 0, 5, "some of it has passed")
        time.sleep(1.0)  # the time that a learner has waited bounds what it believes
        with run.with_actor():
            status = run.status_when(lambda learner: learner.update > 0, "an update").learner
        assert status.train_s > 1.0
        assert status.steps_per_s < status.trained_steps / 1.0


def test_a_pause_before_the_first_rollout_ends_as_it_began(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    store = RunStore(private_client, keys)
    with learning(private_server, private_client, keys, tmp_path) as run:
        for state, expected in ((RUN, "waiting"), (PAUSE, "paused"), (RUN, "waiting")):
            store.set_state(state)
            run.status_when(lambda learner, expected=expected: learner.state == expected, expected)  # type: ignore[misc]


def test_the_status_names_drops_by_actor_and_has_an_alarm_while_they_last(
    private_server: RedisServer,
    private_client: Client,
    keys: RunKeys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("learner.intake.drops._SILENCE_S", 1.0)
    with learning(private_server, private_client, keys, tmp_path) as run:
        run.status_when(lambda learner: learner.state == "waiting", "it has begun")

        def is_alarmed(learner: LearnerStatus) -> bool:
            add(private_client, keys, make_entry(actor=7))
            return learner.alarm != ""

        status = run.status_when(is_alarmed, "an alarm")
        assert status.learner.alarm.endswith(" refused:spec")
        assert status.learner.dropped_by_actor.startswith("actor 7: ")
        assert (status.learner.state, status.keeper.trained) == ("waiting", 0)
        after = run.status_when(lambda learner: learner.alarm == "", "the alarm ends").learner
        assert after.dropped_by_actor.startswith("actor 7: ")


def test_rollouts_that_the_server_does_not_send_raise_an_alarm_with_cause_and_remedy(
    private_server: RedisServer,
    private_client: Client,
    keys: RunKeys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dppo_redis.store.error_causes._REPORTED_AFTER_S", 1.0)
    private_client.config_set("client-output-buffer-limit", "normal 1mb 0 0")
    with learning(private_server, private_client, keys, tmp_path) as run:
        run.status_when(lambda learner: learner.state == "waiting", "it has begun")
        add(private_client, keys, make_entry() | {"payload": bytes(2_000_000)})
        told = run.status_when(lambda learner: learner.alarm != "", "an alarm").learner
        assert "waiting to read rollouts" in told.alarm
        assert "client-output-buffer-limit" in told.alarm
        assert any("client-output-buffer-limit" in text for text in told.warnings)
        private_client.config_set("client-output-buffer-limit", "normal 0 0 0")
        run.status_when(lambda learner: "buffer" not in learner.alarm, "the alarm ends")


def test_a_save_that_fails_is_counted_and_the_next_one_names_its_update(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    """An epoch that is taken anew is saved at once."""
    with learning(private_server, private_client, keys, tmp_path) as run:
        first = run.status_when(lambda learner: learner.checkpoint_update == 0, "the first save").learner
        checkpoints = (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
        in_the_way = tmp_path / "checkpoints"
        in_the_way.touch()
        private_client.flushall()
        failed = run.status_when(lambda learner: learner.save_failures == 1, "a save fails").learner
        assert (failed.checkpoint_update, failed.checkpoint_time) == (0, first.checkpoint_time)
        in_the_way.unlink()
        checkpoints.rename(in_the_way)
        with run.with_actor():
            run.status_when(lambda learner: learner.update > 0, "an update")
            private_client.flushall()
            saved = run.status_when(lambda learner: learner.checkpoint_update > 0, "the next save").learner
        assert (saved.save_failures, saved.checkpoint_time > first.checkpoint_time) == (1, True)
