"""A fleet on a shared Redis: who may join, refused rollouts, status, and recovery of killed services."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.spec import WIRE_SCHEMA, RunDescription
from dppo_redis.protocol.wire import checksum, encode_rollout
from tests.conftest import wait_until
from tests.e2e.support import (
    ACTOR,
    EVALUATOR,
    LEARNER,
    OUTCOMES,
    SLOW,
    Command,
    Run,
    Server,
    assert_nothing_left,
    tree,
)
from tests.factories import make_header, make_rollout

NAME = "shared"
# The learner must read entries of the test before they are stale.
PATIENT = ("--max-staleness", "1000")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server.start()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def fleet(server: Server, directory: Path) -> Iterator[Command]:
    """A run without a target, whose budget lasts longer than these tests."""
    arguments = ["train", *SLOW, *PATIENT, "--run", NAME, "--redis", server.url]
    with Command(*arguments, cwd=directory) as command:
        run = server.run(NAME)
        run.reaches(5)
        yield command
        assert command.stop() == ExitStatus.TERMINATED
        assert_nothing_left(command)
        assert run.hash(run.keys.control)["reason"] == "stopped"
        assert run.client.exists(run.keys.rollouts) == 0


@pytest.fixture
def run(fleet: Command, server: Server) -> Iterator[Run]:
    """The run. After each test it must still train, and its books must balance."""
    found = server.run(NAME)
    yield found
    found.goes_on()
    assert fleet.running
    assert found.status("imbalance") == 0


# Status


def test_status_shows_version_backlog_actors_drops_and_evaluation(run: Run, directory: Path) -> None:
    wait_until(lambda: "version" in run.hash(run.keys.evaluation), 20, "there is an evaluation")
    wait_until(lambda: run.status("update") > 0, 5, "the status says so")
    wait_until(lambda: int(run.actor(0)["pushes"]) > 0, 5, "the actor says so")
    with Command("status", "--redis", _url(run), "--json", cwd=directory) as status:
        assert status.wait(15) == ExitStatus.DONE
        shown = status.summary()
    assert (shown["run"], shown["state"], shown["reason"]) == (NAME, "run", None)
    assert shown["learner"]["version"] > 0
    assert shown["learner"]["update"] > 0
    assert shown["learner"]["staleness_limit"] == 1000
    assert shown["age_s"] < 5
    assert {"0", "1"} <= set(shown["actors"])
    assert shown["actors"]["0"]["pushes"] > 0
    assert abs(time.time() - shown["actors"]["0"]["last_push"]) < 20
    assert shown["evaluation"]["episodes"] == 20
    assert shown["evaluation"]["return_mean"] == 6.0  # rewards 1, 2 and 3
    assert shown["ledger"]["imbalance"] == 0
    assert isinstance(shown["drops"], dict)


def test_status_is_readable_without_json(run: Run, directory: Path) -> None:
    with Command("status", "--redis", _url(run), "--run", NAME, cwd=directory) as status:
        assert status.wait(15) == ExitStatus.DONE
        for word in ("weights version", "staleness", "backlog", "evaluation", "actors", NAME):
            assert word in status.out


def test_status_of_an_unknown_run_is_refused(run: Run, directory: Path) -> None:
    with Command("status", "--redis", _url(run), "--run", "nobody", cwd=directory) as status:
        assert status.wait(15) == ExitStatus.CONFIGURATION
        assert status.err.startswith("dppo-redis: this Redis has no run nobody; it has: ")


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli on PATH: install redis-tools")
def test_redis_cli_alone_shows_what_a_run_does(run: Run, server: Server) -> None:
    def ask(*words: str) -> str:
        command = ["redis-cli", "-s", server.url.removeprefix("unix://"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    assert int(ask("HGET", run.keys.status, "version")) > 0
    assert int(ask("HGET", run.keys.weights, "version")) > 0
    assert int(ask("XLEN", run.keys.rollouts)) >= 0
    assert {"0", "1"} <= set(ask("ZRANGE", run.keys.actors, "0", "-1").split())
    assert ask("HGET", run.keys.actor(0), "host")
    assert int(ask("HGET", run.keys.ledger, "trained")) > 0


def _url(run: Run) -> str:
    return f"unix://{run.client.get_connection_kwargs()['path']}"


# Joining


def test_an_actor_joins_with_url_and_run_name_only_and_leaves_on_sigterm(run: Run, tmp_path: Path) -> None:
    with Command("actor", "--redis", _url(run), "--run", NAME, cwd=tmp_path) as actor:
        actor.wait_for_output("of run shared")
        slot = int(actor.err.rpartition(" INFO actor ")[2].split(",")[0])
        wait_until(lambda: int(run.actor(slot).get("pushes", 0)) > 0, 20, "a push that is reported")
        assert run.actor(slot)["last_error"] == ""
        assert str(slot) in run.client.zrange(run.keys.actors, 0, -1)
        settled = run.hash(run.keys.ledger)
        assert actor.stop(deadline_s=5) == ExitStatus.DONE
    assert run.actor(slot) == {}
    assert str(slot) not in run.client.zrange(run.keys.actors, 0, -1)
    assert settled.get("refused", "0") == run.hash(run.keys.ledger).get("refused", "0")


def test_a_second_learner_is_refused_and_its_message_names_the_leader(run: Run, directory: Path) -> None:
    leader = run.hash(run.keys.status)["learner"]
    epoch = run.status("epoch")
    before = tree(directory / "runs" / NAME / "checkpoints")
    arguments = ["learner", "--redis", _url(run), "--run", NAME, "--run-dir", f"runs/{NAME}"]
    with Command(*arguments, cwd=directory) as second:
        assert second.wait(20) == ExitStatus.CONFIGURATION
        assert leader in second.error_lines[-1]
        assert "Traceback" not in second.err
    assert run.hash(run.keys.status)["learner"] == leader
    assert run.status("epoch") == epoch
    assert before.keys() != tree(directory / "runs" / NAME / "checkpoints").keys()  # the first continues


@pytest.mark.parametrize("how", ["--overwrite", "--resume", "--json"])
def test_train_under_the_name_of_a_living_run_is_refused(run: Run, directory: Path, how: str) -> None:
    keys = run.all_keys()
    config = directory / "runs" / NAME / "config.toml"
    before = config.read_bytes()
    what = [] if how == "--resume" else SLOW
    arguments = ["train", *what, "--run", NAME, "--redis", _url(run), how]
    with Command(*arguments, cwd=directory) as second:
        assert second.wait(15) == ExitStatus.CONFIGURATION
        # With --resume the command checks the directory first, whose run lives.
        leader = "is in use by a living run" if how == "--resume" else run.hash(run.keys.status)["learner"]
        assert leader in second.error_lines[-1]
        assert second.error_lines == [second.error_lines[-1]]
        assert second.survivors() == []
    assert keys <= run.all_keys()
    assert config.read_bytes() == before


# Refused rollouts


def _spoil(run: Run) -> dict[str, dict[str, object]]:
    """Entries that break one rule each, by the reason for which the learner must refuse them."""
    description = RunDescription.from_text(run.client.get(run.keys.spec))
    spec = description.spec
    epoch, version, update = map(int, run.client.hmget(run.keys.weights, "epoch", "version", "update"))

    def entry(boot: int, payload: bytes, **fields: object) -> dict[str, object]:
        header = make_header(
            spec, actor=77, boot=f"{boot:016x}", epoch=epoch, version=version, update=update, steps=16
        )
        return {**vars(header), "crc": checksum(payload), **fields, "payload": payload}

    good = make_rollout(spec)
    nan = make_rollout(spec, rewards=np.full(good.rewards.shape, np.nan, np.float32))
    longer = make_rollout(spec, rewards=np.zeros((9, 2), np.float32))
    whole = encode_rollout(good)
    no_sequence = entry(9, whole)
    del no_sequence["seq"]
    return {
        "undecodable": entry(1, b"garbage" * 10),
        "schema": entry(2, whole.replace(b"\xa6schema" + bytes([WIRE_SCHEMA]), b"\xa6schema\x63")),
        "nonfinite": entry(3, encode_rollout(nan)),
        "shape": entry(4, encode_rollout(longer)),
        "crc": entry(5, whole[:-1] + b"\x7f", crc=checksum(whole)),
        "dtype": entry(6, encode_rollout(make_rollout(spec, rewards=np.zeros((8, 2), np.float64)))),
        "spec": entry(7, whole, spec="0123456789abcdef"),
        "header": no_sequence,
        "lost_lineage": entry(8, whole, epoch=epoch + 7),
    }


def test_malformed_entries_are_refused_with_their_reasons_and_the_learner_continues(run: Run) -> None:
    before = run.hash(run.keys.ledger)
    spoiled = _spoil(run)
    for fields in spoiled.values():
        run.client.xadd(run.keys.rollouts, fields)
    run.client.xadd(run.keys.rollouts, {"hello": "world"})

    def more(field: str) -> int:
        return int(run.hash(run.keys.ledger).get(field, 0)) - int(before.get(field, 0))

    wait_until(lambda: more("refused") == len(spoiled) + 1, 15, "all of them are refused")
    expected = dict.fromkeys((f"refused:{reason}" for reason in spoiled), 1) | {"refused:header": 2}
    assert {field: more(field) for field in expected} == expected
    kept = {fields["reason"] for _, fields in run.client.xrange(run.keys.quarantine)}
    assert {"undecodable", "schema", "nonfinite", "shape", "crc", "dtype", "spec", "header"} <= kept


# Recovery


def test_an_actor_killed_with_9_restarts_with_a_higher_boot_number(run: Run, fleet: Command) -> None:
    boot, pid = run.boot(0), fleet.service(*ACTOR, "--run", NAME, "--slot", "0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run.boot(0) > boot, 15, "the actor joins again")
    wait_until(lambda: run.actor(0).get("boot") == str(boot + 1), 15, "it reports itself")
    wait_until(lambda: int(run.actor(0)["pushes"]) > 0, 15, "it pushes")
    assert fleet.service(*ACTOR, "--run", NAME, "--slot", "0") != pid


def test_an_evaluator_killed_with_9_restarts(run: Run, fleet: Command) -> None:
    pid = fleet.service(*EVALUATOR)
    os.kill(pid, signal.SIGKILL)
    version = run.status("version")

    def evaluated() -> bool:
        return int(run.hash(run.keys.evaluation).get("version", 0)) > version

    wait_until(evaluated, 20, "an evaluation of newer weights")
    assert fleet.service(*EVALUATOR) != pid


def test_a_learner_killed_with_9_resumes_above_every_version_and_epoch(run: Run, fleet: Command) -> None:
    wait_until(lambda: run.status("checkpoint_update") > 0, 15, "a checkpoint")
    pid, saved = fleet.service(*LEARNER), run.status("checkpoint_update")
    os.kill(pid, signal.SIGKILL)
    version, epoch = run.weights("version"), run.weights("epoch")
    wait_until(lambda: run.weights("version") > version, 20, "a higher version")
    assert run.weights("epoch") > epoch
    assert run.weights("update") >= saved
    assert fleet.service(*LEARNER) != pid


def test_no_rollout_is_trained_twice_over_the_death_of_a_learner(run: Run, fleet: Command) -> None:
    wait_until(lambda: run.status("checkpoint_update") > 0, 15, "a checkpoint")
    os.kill(fleet.service(*LEARNER), signal.SIGKILL)
    epoch = run.status("epoch")
    wait_until(lambda: run.status("epoch") > epoch, 20, "a new learner leads")
    run.goes_on()
    trained_steps = run.status("trained_steps")  # by the lineage of the present weights
    pipeline = run.client.pipeline(transaction=True)
    pipeline.xinfo_stream(run.keys.rollouts)
    pipeline.hgetall(run.keys.ledger)
    stream, ledger = pipeline.execute()
    assert trained_steps <= int(ledger["steps:trained"])  # each entry counts only once
    assert "lost" not in ledger
    outcomes = {name: int(ledger.get(name, 0)) for name in OUTCOMES}
    assert stream["entries-added"] == sum(outcomes.values()) + stream["length"]
