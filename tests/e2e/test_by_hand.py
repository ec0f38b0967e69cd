"""Services that are started one by one, as by another supervisor, and a Redis that starts late."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.rollout import RolloutHeader
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.wire import checksum, encode_rollout
from ops.fleet.run_directory import RunDirectory, prepare
from tests.conftest import wait_until
from tests.e2e.support import Command, Run, Server
from tests.factories import discrete, make_header, make_rollout

NAME = "by-hand"
_CONFIG = RunConfig.model_validate(
    {
        "env_id": "tests.envs:Slow-v0",
        "env_kwargs": {"ms": 5},
        "vectorization": "sync",
        "actors": 1,
        "envs_per_actor": 2,
        "rollout_steps": 8,
        "ppo": {"batch_steps": 32, "minibatch_size": 16},
        "network": {"hidden": [8]},
    }
)


@pytest.fixture
def server() -> Iterator[Server]:
    """A Redis that the test starts."""
    with Server() as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    prepare(RunDirectory(NAME, tmp_path / "run"), _CONFIG, resume=False)
    return tmp_path


def _learner(server: Server, place: Path) -> Command:
    arguments = ["--run", NAME, "--run-dir", "run", "--redis", server.url]
    return Command(*arguments, program=("-m", "learner"), cwd=place)


def _actor(server: Server, place: Path) -> Command:
    return Command("--run", NAME, "--redis", server.url, program=("-m", "workers"), cwd=place)


def _evaluator(server: Server, place: Path) -> Command:
    return Command("--run", NAME, "--redis", server.url, program=("-m", "workers.evaluate"), cwd=place)


def test_services_wait_for_a_redis_that_is_absent_and_begin_by_themselves(
    server: Server, place: Path
) -> None:
    with ExitStack() as stack:
        services = [stack.enter_context(start(server, place)) for start in (_learner, _actor, _evaluator)]
        for service in services:
            service.wait_for_output("waiting to")
        server.start()
        run = server.run(NAME)
        run.reaches(3)
        wait_until(lambda: run.hash(run.keys.evaluation) != {}, 15, "there is an evaluation")
        assert all(service.running for service in services)
        for service in services:  # each service ends within seconds, in any state
            service.send(signal.SIGTERM)
        assert [service.wait(8) for service in services] == [ExitStatus.DONE] * 3
        assert run.client.exists(run.keys.lease) == 0
        assert run.client.zrange(run.keys.actors, 0, -1) == []


def test_services_that_wait_for_redis_end_at_once_on_sigterm(server: Server, place: Path) -> None:
    with _learner(server, place) as learner, _actor(server, place) as actor:
        for service in (learner, actor):
            service.wait_for_output("waiting to")
            signalled_at = time.monotonic()
            assert service.stop(deadline_s=5) == ExitStatus.DONE
            assert time.monotonic() - signalled_at < 2.5


def test_an_actor_whose_environment_is_not_the_runs_is_refused(server: Server, place: Path) -> None:
    server.start()
    with _learner(server, place) as learner:
        run = server.run(NAME)
        wait_until(lambda: run.weights("version") > 0, 20, "weights are published")
        assert learner.stop() == ExitStatus.DONE
    description = RunDescription.from_text(run.client.get(run.keys.spec))
    other = replace(description, spec=replace(description.spec, action=discrete(5)))
    run.client.set(run.keys.spec, other.to_text())
    with _actor(server, place) as actor:
        assert actor.wait(15) == ExitStatus.CONFIGURATION
        assert "not the run's environment" in actor.error_lines[-1]
        assert "5" in actor.error_lines[-1]  # the differing parts


def _push(run: Run, seq: int, count: int = 2) -> None:
    """Push a rollout of half a batch as an actor does. More than two environments only add bytes."""
    spec = RunDescription.from_text(run.client.get(run.keys.spec)).spec
    dead = [(t, n) for t in range(spec.rollout_steps) for n in range(2, count)]
    payload = encode_rollout(make_rollout(spec, seed=seq, count=count, invalid=dead))
    header: RolloutHeader = make_header(
        spec, seq=seq, epoch=run.weights("epoch"), version=run.weights("version"), steps=16,
        update=run.weights("update"), crc=checksum(payload),
    )  # fmt: skip
    run.client.xadd(run.keys.rollouts, {**vars(header), "payload": payload})


def _computing_s(service: Command) -> float:
    times = psutil.Process(service.process.pid).cpu_times()
    return float(times.user + times.system)


# Known failure KF-OPS-09.
def test_half_a_batch_survives_a_restart_of_the_learner(server: Server, place: Path) -> None:
    server.start()
    run = server.run(NAME)
    with _learner(server, place) as learner:
        wait_until(lambda: run.weights("version") > 0, 20, "weights are published")
        _push(run, seq=1)
        wait_until(
            lambda: run.client.xpending(run.keys.rollouts, "learners")["pending"] == 1, 10, "it is read"
        )
        looked, spent_s = float(run.hash(run.keys.status)["time"]), _computing_s(learner)
        wait_until(
            lambda: float(run.hash(run.keys.status)["time"]) > looked + 2,
            20,
            "two seconds pass without an actor",
        )
        assert _computing_s(learner) - spent_s < 0.5
        assert learner.stop() == ExitStatus.DONE
    epoch = run.weights("epoch")
    with _learner(server, place) as learner:
        wait_until(lambda: run.weights("epoch") > epoch, 20, "weights are published again")
        _push(run, seq=2)
        wait_until(lambda: run.hash(run.keys.ledger) != {}, 10, "something is settled")
        assert run.hash(run.keys.ledger) == {"trained": "2", "steps:trained": "32"}


# Known failure KF-RED-04.
def test_a_restarted_learner_drops_a_long_stale_backlog_quickly(server: Server, place: Path) -> None:
    server.start()
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    run = server.run(NAME)
    with _learner(server, place) as learner:
        learner.wait_for_output("maxmemory-policy allkeys-lru")
        server.client.config_set("maxmemory-policy", "noeviction")
        wait_until(lambda: run.weights("version") > 0, 20, "weights are published")
        assert learner.stop() == ExitStatus.DONE
    for seq in range(1, 301):  # 350 KB each
        _push(run, seq, count=1000)
    with _learner(server, place), _actor(server, place):
        started = time.monotonic()
        run.reaches(8)  # beyond the staleness limit of everything that was there
        assert time.monotonic() - started < 30
        wait_until(lambda: run.client.xlen(run.keys.rollouts) <= run.status("backlog_high") + 1, 20, "room")
        run.goes_on()
        wait_until(lambda: run.status("imbalance") == 0, 5, "the books balance")
    ledger = {name: int(n) for name, n in run.hash(run.keys.ledger).items()}
    assert ledger["lost"] == ledger["lost:valve"] > 100
    assert ledger["stale"] > 50


def _in_a_namespace(server: Server, place: Path) -> Command:
    """An actor of slot 7 as process 1 of a container with the host name `alike`."""
    words = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child", sys.executable]
    code = (
        "import os, socket, sys; socket.sethostname('alike'); "
        "os.execv(sys.executable, [sys.executable, '-m', 'workers', *sys.argv[1:]])"
    )
    become = f"import os, sys; os.execvp('unshare', [*{words!r}, '-c', {code!r}, *sys.argv[1:]])"
    arguments = ["--run", NAME, "--redis", server.url, "--slot", "7"]
    return Command(*arguments, program=("-c", become), cwd=place)


@pytest.mark.privileged
@pytest.mark.parametrize("begins", ["at once", "later"])
def test_the_second_of_two_actors_with_one_slot_host_name_and_pid_is_refused(
    server: Server, place: Path, begins: str
) -> None:
    if subprocess.run(["unshare", "--pid", "--uts", "--fork", "true"], check=False).returncode:
        pytest.skip("no namespaces of processes and host names: run as root")
    server.start()
    with ExitStack() as stack:
        stack.enter_context(_learner(server, place))
        run = server.run(NAME)
        actors = [stack.enter_context(_in_a_namespace(server, place))]
        if begins == "later":
            run.reaches(3)
        actors.append(stack.enter_context(_in_a_namespace(server, place)))
        wait_until(lambda: [actor.running for actor in actors].count(False) == 1, 30, "one is refused")
        (refused,) = (actor for actor in actors if not actor.running)
        assert refused.wait(1) == ExitStatus.CONFIGURATION
        assert "slot 7 " in refused.error_lines[-1]
        assert "alike:1" in refused.error_lines[-1]
        if begins == "later":
            assert refused is actors[1]
        assert (run.actor(7)["host"], run.actor(7)["pid"]) == ("alike", "1")
        run.goes_on()
