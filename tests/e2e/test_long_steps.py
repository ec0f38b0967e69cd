"""Environments that hang, or take many seconds for each step."""

import signal
import time
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.store.registry import ACTOR_TTL_MS
from tests.conftest import wait_until
from tests.e2e.support import ACTOR, Command, Server, assert_nothing_left

SMALL = ("--envs-per-actor", "2", "--rollout-steps", "8", "--ppo.batch-steps", "16", "--network.hidden", "8")
ENDLESS = (  # quick during the inspection
    *("tests.envs:Slow-v0", "--env-kwargs", "ms", "3600000", "quick", "1", "--vectorization", "sync"),
    *SMALL,
)


@pytest.mark.parametrize(
    ("vectorization", "limit_s"), [("sync", 5), pytest.param("async", 12, marks=pytest.mark.slow)]
)
def test_an_actor_whose_environment_hangs_is_restarted_and_reports_it(
    tmp_path: Path, vectorization: str, limit_s: int
) -> None:
    """The limit also holds for building the environments, which is slow in processes of their own."""
    marker = tmp_path / "hung"
    arguments = (
        "tests.envs:Hangs-v0",
        "--env-kwargs",
        "marker",
        str(marker),
        "--env-timeout-s",
        str(limit_s),
    )
    more = ("--vectorization", vectorization, "--actors", "1", "--total-steps", "160", *SMALL)
    with Command("train", *arguments, *more, "--json", cwd=tmp_path) as command:
        assert command.wait(120) == ExitStatus.DONE, command.err
        assert marker.exists()
        run_dir = Path(command.summary()["run_dir"])
        assert "did not answer" in (run_dir / "logs" / "actor_000.log").read_text()
        assert command.summary()["ledger"]["imbalance"] == 0
        assert_nothing_left(command)


def test_an_actor_lives_while_a_rollout_takes_longer_than_its_registration(tmp_path: Path) -> None:
    slow = ("tests.envs:Slow-v0", "--env-kwargs", "ms", "1000", "--vectorization", "sync", *SMALL)
    with (
        Server().start() as server,
        Command(
            "train", *slow, "--actors", "1", "--redis", server.url, "--run", "slow", cwd=tmp_path
        ) as command,
    ):
        run = server.run("slow")
        wait_until(lambda: run.actor(0) != {}, 60, "the actor is registered")
        until = time.monotonic() + 1.5 * ACTOR_TTL_MS / 1000  # the first rollout takes 16 s
        wait_until(lambda: run.actor(0) == {} or time.monotonic() > until, 60, "time has passed")
        assert run.actor(0)["pushes"] == "0"
        assert command.stop(30) == ExitStatus.TERMINATED
        assert_nothing_left(command)


def test_an_actor_in_an_endless_step_ends_on_a_signal(tmp_path: Path) -> None:
    with (
        Server().start() as server,
        Command(
            "train", *ENDLESS, "--actors", "1", "--redis", server.url, "--run", "endless", cwd=tmp_path
        ) as command,
    ):
        run = server.run("endless")
        wait_until(lambda: run.actor(0) != {}, 60, "the actor of the fleet is registered")
        with Command(
            *("--redis", server.url, "--run", "endless", "--slot", "7"), program=ACTOR, cwd=tmp_path
        ) as actor:
            wait_until(lambda: run.actor(7) != {}, 60, "the one by hand is registered")
            actor.send(signal.SIGINT)
            assert actor.wait(10) == ExitStatus.DONE
            assert run.actor(7) == {}
        assert command.stop() == ExitStatus.TERMINATED
        assert_nothing_left(command)


def test_the_baseline_in_an_endless_step_can_be_interrupted(tmp_path: Path) -> None:
    with Command("serial", *ENDLESS, cwd=tmp_path) as command:
        command.wait_for_output("samples per update")
        command.send(signal.SIGINT)
        assert command.wait(15) == ExitStatus.INTERRUPTED
