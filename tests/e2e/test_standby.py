"""Two learners of one run: one leads, the other waits. A learner that lost its lease writes nothing."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until
from tests.e2e.support import Command, Run, Server
from tests.e2e.test_by_hand import NAME, place, server
from tests.e2e.test_by_hand import _actor as actor_of

__all__ = ["place", "server"]  # fixtures
TAKEOVER_S = 15.0  # a lease of 5 s must expire, and the machine may be busy


def _learner(server: Server, place: Path, *flags: str) -> Command:
    arguments = ["--run", NAME, "--run-dir", "run", "--redis", server.url, *flags]
    return Command(*arguments, program=("-m", "learner"), cwd=place)


@contextmanager
def _pair(server: Server, place: Path) -> Iterator[tuple[Run, Command, Command]]:
    """(run, leader, standby) with an actor, and a few updates made."""
    server.start()
    run = server.run(NAME)
    with _learner(server, place) as leader, actor_of(server, place):
        run.reaches(2)
        with _learner(server, place, "--standby") as standby:
            standby.wait_for_output(f"standing by: run {NAME} is led by")
            yield run, leader, standby


def _taken_over(run: Run, from_epoch: int) -> int:
    """Wait until the standby leads; returns its epoch."""
    wait_until(lambda: run.weights("epoch") > from_epoch, TAKEOVER_S, "the standby leads")
    return run.weights("epoch")


# Known failure KF-OPS-04.
def test_a_leader_that_was_frozen_past_its_lease_writes_nothing_more_and_exits_with_76(
    server: Server, place: Path
) -> None:
    with _pair(server, place) as (run, leader, standby):
        leader.send(signal.SIGSTOP)
        version = run.weights("version")
        epoch = _taken_over(run, run.weights("epoch"))
        run.goes_on()
        leader.send(signal.SIGCONT)
        assert leader.wait(10) == ExitStatus.FENCED
        assert "is led by" in leader.error_lines[-1] or "taken by another learner" in leader.error_lines[-1]
        run.goes_on()
        assert run.weights("epoch") == epoch
        assert run.weights("version") > version
        assert f":{standby.process.pid}:" in run.client.get(run.keys.lease)
        wait_until(lambda: run.status("entries_added") > 0, 5, "the new leader audits")
        assert run.status("imbalance") == 0
        assert standby.stop() == ExitStatus.DONE


def test_a_leader_that_ends_cleanly_is_followed_from_its_last_checkpoint_until_the_run_is_over(
    server: Server, place: Path
) -> None:
    with _pair(server, place) as (run, leader, standby):
        update, first = run.weights("update"), run.weights("epoch")
        assert leader.stop() == ExitStatus.DONE
        second = _taken_over(run, first)
        standby.wait_for_output("resuming at update")
        assert int(standby.err.split("resuming at update ")[1].split()[0]) >= update
        run.goes_on()
        with _learner(server, place, "--standby") as third:
            third.wait_for_output("standing by")
            run.client.hset(run.keys.control, "state", "stop")
            assert standby.wait(15) == ExitStatus.DONE
            assert third.wait(5) == ExitStatus.DONE
        assert run.weights("epoch") == second


def test_a_standby_ends_on_a_signal_and_the_leader_continues(server: Server, place: Path) -> None:
    with _pair(server, place) as (run, _, standby):
        epoch = run.weights("epoch")
        assert standby.stop(deadline_s=5) == ExitStatus.DONE
        run.goes_on()
        assert run.weights("epoch") == epoch
