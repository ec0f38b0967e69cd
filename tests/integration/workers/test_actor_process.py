"""`python -m workers` under supervisord: pauses and ends by the deaths of earlier processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.service_deaths import (
    DIRECTORY_VARIABLE,
    SERVICE_VARIABLE,
    Deaths,
    file_of,
    write_file,
)
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import STOP, RunStore, list_run
from tests.conftest import RedisServer, wait_until
from tests.factories import describe
from tests.integration.learner_side import in_background, lead, leadership_of
from tests.integration.looking import hash_of

ROOT = Path(__file__).resolve().parents[3]
SLOT = 4
Start = Callable[..., Any]


class Process:
    """An actor process of slot 4, and its log."""

    def __init__(self, url: str, run: str, directory: Path, deaths: Deaths | None) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        if deaths is not None:
            write_file(file_of(directory, "actor_004"), deaths)
            environment |= {DIRECTORY_VARIABLE: str(directory), SERVICE_VARIABLE: "actor_004"}
        self.log = directory / "actor.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers", "--redis", url, "--run", run, "--slot", str(SLOT)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> int:
        return self.process.wait(30)


@pytest.fixture
def start(
    redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest, tmp_path: Path
) -> Start:
    """Starts an actor of a run that a learner has described."""

    @contextmanager
    def started(description: RunDescription, deaths: Deaths | None = None) -> Iterator[Process]:
        leadership = leadership_of(client, keys, stop, description=description)
        leadership.lease.acquire(0, 0)
        leadership.publisher.announce()
        process = Process(redis_server.url, keys.run, tmp_path, deaths)
        try:
            yield process
        finally:
            process.process.kill()
            process.process.wait()

    return started


def errors(client: Client, keys: RunKeys) -> list[bytes]:
    return [fields[b"error"] for _, fields in cast(Any, client.xrange(keys.errors))]


def cart_pole(**knobs: Any) -> RunDescription:
    return describe(RunConfig(env_id="CartPole-v1", **knobs))


def test_after_ten_deaths_in_a_row_it_gives_up_and_says_why(
    start: Start, client: Client, keys: RunKeys
) -> None:
    with start(cart_pole(), Deaths(10, 12, 0, "SIGSEGV: Segmentation fault, in step")) as actor:
        assert actor.wait() == ExitStatus.GAVE_UP
        assert "10 times in a row, the last time with SIGSEGV" in actor.log.read_text()
    (error,) = errors(client, keys)
    assert b"SIGSEGV" in error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda value: value.name)
def test_its_pause_is_seen_from_outside_and_a_stop_ends_it(
    start: Start, client: Client, keys: RunKeys, number: signal.Signals
) -> None:
    with start(cart_pole(), Deaths(9, 20, 3, "status 70: no licence")) as actor:
        wait_until(lambda: hash_of(client, keys.actor(SLOT)) != {}, 20, "it is registered")
        said = hash_of(client, keys.actor(SLOT))
        assert (said["deaths"], said["killed"], said["last_death"]) == ("20", "3", "status 70: no licence")
        actor.process.send_signal(number)
        assert actor.wait() == ExitStatus.TERMINATED  # for supervisord, which starts another one


def test_a_stopped_actor_that_was_started_by_hand_exits_with_0(
    start: Start, client: Client, keys: RunKeys
) -> None:
    with start(cart_pole()) as actor:
        wait_until(lambda: "boot" in hash_of(client, keys.actor(SLOT)), 20, "it is registered")
        actor.process.send_signal(signal.SIGTERM)
        assert actor.wait() == ExitStatus.DONE


def test_an_actor_started_by_hand_logs_why_it_leaves(start: Start, client: Client, keys: RunKeys) -> None:
    with start(cart_pole()) as actor:
        wait_until(lambda: "boot" in hash_of(client, keys.actor(SLOT)), 20, "it is registered")
        RunStore(client, keys).set_state(STOP, "target")
        assert actor.wait() == ExitStatus.DONE
        last = actor.log.read_text().splitlines()[-1]
    assert last.endswith("actor 4 leaves: the run has ended (target); pushed 0 rollouts, 0 steps")


def test_an_actor_that_starts_after_the_end_of_the_run_says_so(
    start: Start, client: Client, keys: RunKeys
) -> None:
    RunStore(client, keys).set_state(STOP, "total_steps")
    with start(cart_pole()) as actor:
        assert actor.wait() == ExitStatus.DONE
        assert f"run {keys.run} is over (total_steps): there is nothing to sample" in actor.log.read_text()


def test_an_actor_with_a_mistyped_run_waits_and_names_the_existing_runs(
    redis_server: RedisServer, client: Client, keys: RunKeys, stop: StopRequest, tmp_path: Path
) -> None:
    leadership = lead(client, keys, stop)
    leadership.publisher.announce()
    list_run(client, keys.run)
    actor = Process(redis_server.url, f"{keys.run}x", tmp_path, None)
    try:
        wait_until(lambda: "waiting for the learner" in actor.log.read_text(), 20, "it waits")
        said = actor.log.read_text()
        assert f"of run {keys.run}x; this Redis has other runs: {keys.run}" in said
        assert f"(did you mean {keys.run}?)" in said
        actor.process.terminate()
        assert actor.wait() == ExitStatus.DONE
    finally:
        actor.process.kill()
        actor.process.wait()


def test_a_failed_build_is_reported_at_once_and_given_up_after_its_time(
    start: Start, client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    port = tmp_path / "port"
    config = RunConfig(env_id="tests.envs:Busy-v0", env_kwargs={"port": str(port)}, env_retry_s=1.0)
    description = describe(config)
    port.touch()
    with start(description) as actor:
        assert actor.wait() == ExitStatus.ENVIRONMENT_BROKEN
        assert "could not be built for 1 s" in actor.log.read_text()
    first = errors(client, keys)[0]
    assert b"Traceback" in first
    assert b"port 1234 is busy" in first


def test_an_actor_whose_slot_was_taken_while_it_built_its_environment_is_refused(
    start: Start, client: Client, keys: RunKeys, tmp_path: Path, stop: StopRequest
) -> None:
    """Building takes long, and another one was faster."""
    port = tmp_path / "port"
    config = RunConfig(env_id="tests.envs:Busy-v0", env_kwargs={"port": str(port)}, env_retry_s=30.0)
    description = describe(config)
    port.touch()

    def beat() -> None:
        while not stop.requested:
            client.hset(keys.actor(SLOT), mapping={"host": "elsewhere", "pid": "17", "time": time.time()})
            stop.sleep(0.5)

    with start(description) as actor:
        wait_until(lambda: errors(client, keys) != [], 20, "it has looked at the slot")
        with in_background(beat, stop):
            port.unlink()
            assert actor.wait() == ExitStatus.CONFIGURATION
            assert "slot 4 belongs to a living actor, elsewhere:17" in actor.log.read_text()
    assert client.hget(keys.boots, str(SLOT)) is None
