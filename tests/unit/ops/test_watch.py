"""When a service that starts again and again has to be given up."""

from pathlib import Path

from ops.fleet.supervisor import ProcessState
from ops.screens.watch import Restarts


def process(pid: int) -> ProcessState:
    return ProcessState("actor_000", "RUNNING", 0, pid, Path("actor.log"))


def starts_until_given_up(restarts: Restarts, update: int) -> int:
    return next(n for n in range(1, 100) if restarts.is_looping(process(pid=n), update))


def test_before_the_first_update_a_few_starts_in_vain_are_enough() -> None:
    assert starts_until_given_up(Restarts(), update=0) == 4


def test_a_run_that_has_trained_is_given_more_patience() -> None:
    assert starts_until_given_up(Restarts(), update=7) == 11


def test_a_process_that_goes_on_running_counts_once() -> None:
    restarts = Restarts()
    assert not any(restarts.is_looping(process(pid=1), update=0) for _ in range(100))


def test_progress_forgives_every_start() -> None:
    restarts = Restarts()
    assert not any(restarts.is_looping(process(pid=n), update=n) for n in range(1, 100))
