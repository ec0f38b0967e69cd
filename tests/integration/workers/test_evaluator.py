"""The evaluator against a real server: slow environments, cut and failing evaluations, the end of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.artefacts.best_policy import BestPolicy
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.config import EnvValue
from dppo_redis.protocol.report_fields import from_json
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.weight_store import WeightStore
from tests.conftest import opened, wait_until
from tests.factories import make_description, make_spec
from tests.integration.learner_side import in_background, lead, publish
from workers.episodes import EpisodePlayer
from workers.evaluate import Evaluator

PATIENCE_S = 20.0


def described(env_id: str, env_kwargs: dict[str, EnvValue], **join: Any) -> RunDescription:
    return make_description(make_spec(env_id=f"tests.envs:{env_id}", env_kwargs=env_kwargs), **join)


@contextmanager
def evaluating(
    client: Client,
    keys: RunKeys,
    url: str,
    description: RunDescription,
    stop: StopRequest,
    run_dir: Path | None = None,
) -> Iterator[tuple[Evaluator, Any, Any]]:
    """An evaluator in a thread, and a leadership that has published once."""
    leadership = lead(client, keys, stop, description=description)
    own_stop = StopRequest()
    with opened(url, "evaluator") as own:
        player = EpisodePlayer(description)
        store, weights = RunStore(own, keys), WeightStore(own, keys)
        evaluator = Evaluator(
            description, store, weights, RetryLoop(own_stop), own_stop, BestPolicy(run_dir), player
        )
        try:
            with in_background(evaluator.run, own_stop) as thread:
                yield evaluator, leadership, thread
        finally:
            player.close()


@pytest.fixture
def store(client: Client, keys: RunKeys) -> RunStore:
    return RunStore(client, keys)


@pytest.fixture
def url(redis_server: Any) -> str:
    return str(redis_server.url)


def test_a_slow_environment_is_evaluated_in_parallel_and_the_newest_weights_come_next(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest
) -> None:
    """Ten episodes of 40 steps of 10 ms: 0.4 s in parallel, 4 s one after another."""
    description = described("Slow-v0", {"ms": 10, "length": 40}, evaluation_episodes=10)
    with evaluating(client, keys, url, description, stop) as (evaluator, leadership, _):
        wait_until(lambda: evaluator.report.evaluations == 1, PATIENCE_S, "the first one is complete")
        for update in (1, 2, 3):
            publish(leadership, update, description.spec)
            time.sleep(0.1)
        wait_until(lambda: evaluator.report.evaluations >= 2, PATIENCE_S, "the second one is complete")
        second = store.evaluation()
        assert second is not None
        assert (second.update, second.complete, second.episodes) == (3, True, 10) or second.update == 1
        wait_until(
            lambda: (store.evaluation() or second).update == 3, PATIENCE_S, "the newest weights are evaluated"
        )
        assert evaluator.report.evaluations <= 3, "none of those between"
        assert store.evaluator().evaluations == evaluator.report.evaluations


def test_the_end_of_a_run_cuts_the_last_evaluation_which_says_so_and_replaces_no_complete_one(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest
) -> None:
    """Good episodes take 2 steps, the others 400 of 10 ms."""
    description = described(
        "ShortAndGood-v0",
        {"ms": 10, "length": 400},
        evaluation_episodes=8,
        evaluation_end_wait_s=1.0,
    )
    with evaluating(client, keys, url, description, stop) as (evaluator, _, thread):
        wait_until(lambda: store.evaluator().playing, PATIENCE_S, "progress is reported")
        store.set_state(STOP, "total_steps")
        began = time.monotonic()
        thread.result(PATIENCE_S)
        assert time.monotonic() - began < 4
        report = store.evaluator()
        cut = from_json(Evaluation, report.unfinished)
        assert (cut.planned, cut.complete, cut.return_mean) == (8, False, 10)
        assert 0 < cut.episodes < 8
        assert (report.evaluations, report.error, report.playing) == (0, "", False)
        assert store.evaluation() is None, "the learner judges by this one"
        assert evaluator.best.return_mean is None


def test_the_end_of_a_run_is_for_its_last_weights(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest
) -> None:
    """An evaluation takes 2 s: there would be no time left for a second one."""
    description = described(
        "Slow-v0", {"ms": 10, "length": 200}, evaluation_episodes=4, evaluation_end_wait_s=PATIENCE_S
    )
    with evaluating(client, keys, url, description, stop) as (evaluator, leadership, thread):
        wait_until(lambda: store.evaluator().playing, PATIENCE_S, "the first one is being played")
        publish(leadership, 5, description.spec)
        store.set_state(STOP, "total_steps")
        thread.result(PATIENCE_S)
        last = store.evaluation()
        assert last is not None
        assert (last.update, last.complete, evaluator.report.evaluations) == (5, True, 1)


def test_an_evaluation_has_a_limit_and_one_without_ends_says_what_to_do(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest
) -> None:
    description = described("Slow-v0", {"ms": 5, "length": 10**6}, evaluation_limit_s=0.3)
    with evaluating(client, keys, url, description, stop):
        wait_until(lambda: store.evaluator().failures > 0, PATIENCE_S, "it has been given up")
        assert "--evaluation.wrappers" in store.evaluator().error


def test_an_evaluation_that_fails_says_why_and_is_tried_again(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest, tmp_path: Any
) -> None:
    busy = tmp_path / "port"
    busy.touch()
    description = described("Busy-v0", {"port": str(busy)})
    with evaluating(client, keys, url, description, stop) as (_, _, thread):
        wait_until(lambda: store.evaluator().failures > 0, PATIENCE_S, "it has failed")
        assert "port 1234 is busy" in store.evaluator().error
        busy.unlink()
        wait_until(lambda: store.evaluation() is not None, PATIENCE_S, "it is tried again")
        report = store.evaluator()
        assert (report.evaluations, report.error) == (1, "")
        assert report.failures >= 1
        store.set_state(STOP, "total_steps")
        thread.result(PATIENCE_S)


def test_a_failing_evaluation_does_not_hold_up_the_end(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest
) -> None:
    description = described("RaisesInStep-v0", {"at": 2})
    with evaluating(client, keys, url, description, stop) as (_, _, thread):
        wait_until(lambda: store.evaluator().failures > 0, PATIENCE_S, "it has failed")
        store.set_state(STOP, "total_steps")
        began = time.monotonic()
        thread.result(PATIENCE_S)
        assert time.monotonic() - began < 5
        assert "lost its licence" in store.evaluator().error


def test_an_evaluator_continues_the_count_of_the_previous_one(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest
) -> None:
    description = described("Terminating-v0", {})
    store.write_evaluator(replace(store.evaluator(), evaluations=7, playing=True))
    with evaluating(client, keys, url, description, stop):
        wait_until(lambda: store.evaluator().evaluations == 8, PATIENCE_S, "one more is complete")
        assert not store.evaluator().playing


def test_a_best_policy_that_cannot_be_kept_is_reported_until_one_can(
    client: Client, keys: RunKeys, url: str, store: RunStore, stop: StopRequest, tmp_path: Path
) -> None:
    in_the_way = RunFiles(tmp_path).best_policy
    (in_the_way / "full").mkdir(parents=True)
    description = described("Slow-v0", {"ms": 0, "length": 5}, evaluation_episodes=1)
    with evaluating(client, keys, url, description, stop, tmp_path) as (evaluator, leadership, _):
        wait_until(lambda: store.evaluator().evaluations == 1, PATIENCE_S, "it is evaluated")
        assert store.evaluator().unkept.startswith("cannot keep the best policy: ")
        (in_the_way / "full").rmdir()
        in_the_way.rmdir()
        evaluator.best.return_mean = -1.0  # as if the next one were better
        publish(leadership, 1, description.spec)
        wait_until(lambda: store.evaluator().evaluations == 2, PATIENCE_S, "it is evaluated again")
        assert store.evaluator().unkept == ""
    assert in_the_way.is_file()
