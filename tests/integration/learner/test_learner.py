"""The whole learner with a real actor on a real server: three updates, a resume, and interference."""

import csv
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import tomli_w
import torch

from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import plan
from dppo_redis.protocol.spec import RunDescription, describe_run
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import PAUSE, RUN, STOP, RunStore
from dppo_redis.store.weight_store import WeightStore
from learner.__main__ import LearnerOptions, _serve, _spaces
from tests.conftest import RedisServer, wait_until
from tests.factories import make_config, spaces_of
from tests.integration.actor_side import SLOT, RunningActor, running_actor
from tests.integration.learner_side import in_background
from tests.integration.looking import hash_of, imbalance, integer, ledger_of, version_of
from workers.build import build_collector

BATCH = 64
THREE_UPDATES = 3 * BATCH
ENDLESS = 10**9
DEADLINE_S = 20.0


def config_of(total_steps: int, milestone_steps: int | None = None) -> RunConfig:
    """CartPole with two environments, rollouts of 16 steps and two of them in each batch."""
    return make_config(
        env_id="CartPole-v1",
        total_steps=total_steps,
        actors=1,
        envs_per_actor=2,
        rollout_steps=16,
        vectorization="sync",
        network={"hidden": [8]},
        ppo={"batch_steps": BATCH, "minibatch_size": 32, "update_epochs": 2},
        checkpoint={"interval_s": 3600, "keep": 3, "milestone_steps": milestone_steps},
    )


def description_of(config: RunConfig) -> RunDescription:
    return plan(config, spaces_of(config), serial=False).description


@dataclass
class Training:
    """A learner in a thread, an actor in another, and what they leave behind."""

    client: Client
    keys: RunKeys
    directory: Path
    learner: Future[ExitStatus]
    actor: RunningActor

    @property
    def update(self) -> int:
        """Updates made so far; raises what ended the learner, if anything did."""
        if self.learner.done():
            self.learner.result()
        return int(self.status().get("update", 0))

    def status(self) -> dict[str, str]:
        """The keeper's last report; empty while its key is not what it should be."""
        return hash_of(self.client, self.keys.status) if self.client.type(self.keys.status) == b"hash" else {}

    @property
    def reported_at(self) -> float:
        """When the keeper last reported, in seconds."""
        return float(self.status().get("time", 0))

    def wait_for_reports(self, more: int) -> None:
        for _ in range(more):
            before = self.reported_at
            wait_until(lambda before=before: self.reported_at > before, DEADLINE_S, "a report")  # type: ignore[misc]

    def wait_for_updates(self, more: int) -> None:
        target = self.update + more
        wait_until(lambda: self.actor.alive and self.update >= target, DEADLINE_S, f"{more} more updates")


@contextmanager
def training(
    server: RedisServer,
    client: Client,
    keys: RunKeys,
    directory: Path,
    total_steps: int,
    milestone_steps: int | None = None,
) -> Iterator[Training]:
    """Both run until the block ends, or until the learner has reached its goal."""
    config = config_of(total_steps, milestone_steps)
    values = config.model_dump(exclude_none=True, mode="json")
    (directory / "config.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    argv = ["--run", keys.run, "--run-dir", str(directory), "--redis", server.url]
    stop = StopRequest()
    description = description_of(config)
    with (
        in_background(lambda: _serve(argv, stop), stop) as learner,
        running_actor(
            server.url, keys, partial(build_collector, description, None, SLOT), description
        ) as actor,
    ):
        yield Training(client, keys, directory, learner, actor)


def train_to_the_end(
    server: RedisServer, client: Client, keys: RunKeys, directory: Path, total_steps: int
) -> ExitStatus:
    with training(server, client, keys, directory, total_steps) as run:
        status = run.learner.result(DEADLINE_S)
        run.actor.wait_for_the_end()
    return status


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "metrics.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def newest_checkpoint(directory: Path) -> dict[str, Any]:
    file = max((directory / "checkpoints").glob("*.pt"))
    return cast(dict[str, Any], torch.load(file, weights_only=True))


def test_three_updates_leave_metrics_status_and_a_checkpoint(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    assert train_to_the_end(private_server, private_client, keys, tmp_path, THREE_UPDATES) is ExitStatus.DONE
    rows = rows_of(tmp_path)
    assert [row["update"] for row in rows] == ["1", "2", "3"]
    assert [int(row["trained_steps"]) for row in rows] == [BATCH, 2 * BATCH, 3 * BATCH]
    assert [int(row["version"]) for row in rows] == [2, 3, 4]
    status = hash_of(private_client, keys.status)
    shown = {name: status[name] for name in ("state", "update", "trained_steps", "version", "imbalance")}
    expected = {"state": "finished", "update": "3", "trained_steps": "192", "version": "4", "imbalance": "0"}
    assert shown == expected
    assert status["checkpoint_update"] == "3"
    assert 0 <= float(status["time"]) - float(status["checkpoint_time"]) < 60
    assert status["dropped_by_actor"] == ""
    control = RunStore(private_client, keys).control()
    assert (control.state, control.reason) == (STOP, "total_steps")
    assert newest_checkpoint(tmp_path)["progress"]["update"] == 3
    assert integer(private_client.exists(keys.lease)) == 0
    assert ledger_of(private_client, keys)["steps:trained"] == THREE_UPDATES
    assert imbalance(private_client, keys) == 0


def test_a_milestone_that_could_not_be_saved_is_saved_later(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    """The second of three updates owes one, and a directory stands in its place."""
    train_to_the_end(private_server, private_client, keys, tmp_path, BATCH)
    RunStore(private_client, keys).set_state(RUN)
    in_the_way = tmp_path / "checkpoints" / f"milestone-{2 * BATCH:012d}.pt"
    in_the_way.mkdir()
    with training(private_server, private_client, keys, tmp_path, THREE_UPDATES, 2 * BATCH) as run:
        assert run.learner.result(DEADLINE_S) is ExitStatus.DONE
        run.actor.wait_for_the_end()
    in_the_way.rmdir()
    milestones = [file.name for file in (tmp_path / "checkpoints").glob("milestone-*")]
    assert milestones == [f"milestone-{THREE_UPDATES:012d}.pt"]


def test_the_metrics_stream_holds_the_rows_of_the_file(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    train_to_the_end(private_server, private_client, keys, tmp_path, THREE_UPDATES)
    found = cast(list[tuple[bytes, dict[bytes, bytes]]], private_client.xrange(keys.metrics))
    updates = [fields for _, fields in found if fields[b"kind"] == b"update"]
    for fields, row in zip(updates, rows_of(tmp_path), strict=True):
        stored = {name.decode(): value.decode() for name, value in fields.items()}
        assert {name: stored[name] for name in row} == row


def test_a_resumed_run_continues_with_its_counters_and_a_higher_version(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    train_to_the_end(private_server, private_client, keys, tmp_path, THREE_UPDATES)
    first = newest_checkpoint(tmp_path)
    version = version_of(private_client, keys)
    RunStore(private_client, keys).reopen()
    train_to_the_end(private_server, private_client, keys, tmp_path, 2 * THREE_UPDATES)
    second = newest_checkpoint(tmp_path)
    assert [row["update"] for row in rows_of(tmp_path)] == ["1", "2", "3", "4", "5", "6"]
    assert int(rows_of(tmp_path)[3]["trained_steps"]) == 4 * BATCH
    assert int(rows_of(tmp_path)[3]["version"]) == version + 2  # it republished at its start
    assert second["epoch"] == first["epoch"] + 1
    assert second["lineage"] == [[1, 0], [2, 3]]
    assert second["progress"]["trained_steps"] == 2 * THREE_UPDATES
    assert second["progress"]["episodes"] > first["progress"]["episodes"]
    assert ledger_of(private_client, keys)["steps:trained"] == 2 * THREE_UPDATES
    assert imbalance(private_client, keys) == 0


def test_the_published_weights_are_those_of_the_last_update(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    train_to_the_end(private_server, private_client, keys, tmp_path, THREE_UPDATES)
    weights = WeightStore(private_client, keys).fetch()
    assert weights is not None
    assert (weights.update, weights.trained_steps) == (3, THREE_UPDATES)
    model = newest_checkpoint(tmp_path)["model"]
    for name, array in weights.arrays.items():
        assert torch.equal(torch.from_numpy(array.copy()), model[name])


class TestControl:
    def test_a_pause_holds_the_learner_and_run_lets_it_go(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
    ) -> None:
        store = RunStore(private_client, keys)
        with training(private_server, private_client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            store.set_state(PAUSE)
            wait_until(lambda: run.status()["state"] == "paused", DEADLINE_S, "the learner has paused")
            before, rows = run.status(), len(rows_of(tmp_path))
            run.wait_for_reports(2)
            assert len(rows_of(tmp_path)) == rows
            assert run.status()["train_s"] == before["train_s"], "a pause is no training time"
            store.set_state(RUN)
            run.wait_for_updates(2)
            assert run.status()["state"] == "training"
            assert float(run.status()["train_s"]) < float(before["train_s"]) + run.reported_at - float(
                before["time"]
            )

    def test_an_unknown_state_is_logged_once_and_acts_as_run(
        self,
        private_server: RedisServer,
        private_client: Client,
        keys: RunKeys,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with training(private_server, private_client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            RunStore(private_client, keys).set_state("halt")
            run.wait_for_updates(3)
        complaints = [message for message in caplog.messages if "unknown state" in message]
        assert complaints == ["control asks for the unknown state 'halt': treating it as 'run'"]

    def test_a_stop_ends_it_saved_and_without_a_lease(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
    ) -> None:
        with training(private_server, private_client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            RunStore(private_client, keys).set_state(STOP, "stopped")
            assert run.learner.result(DEADLINE_S) is ExitStatus.DONE
        assert newest_checkpoint(tmp_path)["progress"]["update"] == int(rows_of(tmp_path)[-1]["update"])
        assert integer(private_client.exists(keys.lease)) == 0


INTERFERED = ("weights", "spec", "ledger", "control", "rollouts", "status", "evaluation", "metrics")


class TestInterference:
    """Two things that a key of another type must not do: end the learner, or end the actor."""

    @pytest.mark.parametrize("name", [*INTERFERED, "actors", "lease", "epoch"])
    def test_training_continues_after_a_key_was_overwritten_with_another_type(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path, name: str
    ) -> None:
        client, key = private_client, str(getattr(keys, name))
        with training(private_server, client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            overwrite(client, key)
            if name != "evaluation":  # the next evaluation will replace it
                wait_until(lambda: run.actor.alive and is_healed(run, key), 5, "the key is put right")
            run.wait_for_updates(2)
            wait_until(lambda: run.status().get("imbalance") == "0", 5, "the books balance")

    def test_training_continues_after_flushall(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
    ) -> None:
        with training(private_server, private_client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            private_client.flushall()
            run.wait_for_updates(2)
            assert run.status()["epoch"] == "2"

    def test_an_epoch_that_was_taken_after_flushall_is_in_a_checkpoint_at_once(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
    ) -> None:
        with training(private_server, private_client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            assert newest_checkpoint(tmp_path)["epoch"] == 1
            private_client.flushall()
            wait_until(lambda: newest_checkpoint(tmp_path)["epoch"] == 2, 10, "it is saved")

    def test_training_continues_after_a_restart_of_the_server(
        self, private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
    ) -> None:
        with training(private_server, private_client, keys, tmp_path, ENDLESS) as run:
            run.wait_for_updates(1)
            private_server.restart()
            wait_until(lambda: run.status() != {}, 10, "the keeper is back")
            run.wait_for_updates(2)
            assert run.status()["imbalance"] == "0"


def overwrite(client: Client, key: str) -> None:
    """At once, so that nobody finds the key missing and puts it back first."""
    pipeline = client.pipeline(transaction=True)
    pipeline.delete(key)
    pipeline.sadd(key, "a set, which no key of a run is")
    pipeline.execute()


def is_healed(run: Training, key: str) -> bool:
    return run.update >= 0 and run.client.type(key) != b"set"


def test_a_learner_without_the_environment_reads_what_it_looks_like(
    client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    """From the spec that another learner of the run has published; then from the run's own directory."""
    here = config_of(ENDLESS)
    gone = here.model_copy(update={"env_id": "gone_from_here:Walk-v0"})
    spaces, options = spaces_of(here), LearnerOptions(keys.run, tmp_path)
    description = describe_run(gone, spaces, 16)
    with pytest.raises(ConfigurationError, match="gone_from_here"):
        _spaces(options, gone, client, StopRequest())
    client.set(keys.spec, description.to_text())
    assert _spaces(options, gone, client, StopRequest()) == spaces
    client.delete(keys.spec)
    assert _spaces(options, gone, client, StopRequest()) == spaces
    other = gone.model_copy(update={"env_kwargs": {"wind": 1.0}})
    with pytest.raises(ConfigurationError, match="gone_from_here"):
        _spaces(options, other, client, StopRequest())
