"""When a service that restarts repeatedly ends the run."""

from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus, RunFailedError
from dppo_redis.protocol.reports import ActorReport
from ops.fleet.supervisor import ProcessState
from ops.screens.watch import CrashLoopDetector, FailedServices


def process(pid: int) -> ProcessState:
    return ProcessState("actor_000", "RUNNING", 0, pid, Path("actor.log"))


def starts_until_given_up(restarts: CrashLoopDetector, update: int) -> int:
    return next(n for n in range(1, 100) if restarts.is_looping(process(pid=n), update))


def test_before_the_first_update_a_few_failed_starts_end_the_run() -> None:
    assert starts_until_given_up(CrashLoopDetector(), update=0) == 4


def test_after_the_first_update_more_starts_are_allowed() -> None:
    assert starts_until_given_up(CrashLoopDetector(), update=7) == 11


def test_a_process_that_keeps_running_counts_as_one_start() -> None:
    restarts = CrashLoopDetector()
    assert not any(restarts.is_looping(process(pid=1), update=0) for _ in range(100))


def test_an_update_resets_the_count_of_starts() -> None:
    restarts = CrashLoopDetector()
    assert not any(restarts.is_looping(process(pid=n), update=n) for n in range(1, 100))


def service(name: str, state: str = "RUNNING", exit_status: int = 0, pid: int = 1) -> ProcessState:
    return ProcessState(name, state, exit_status, pid, Path("no.log"))


def gave_up(name: str, exit_status: int = ExitStatus.GAVE_UP) -> ProcessState:
    return service(name, "EXITED", exit_status, pid=0)


def test_a_run_continues_without_one_of_its_actors_and_warns_once() -> None:
    failed_services, processes = (
        FailedServices(),
        [gave_up("actor_000"), service("actor_001"), service("learner")],
    )
    (warning,) = failed_services.check(processes, 7, joined=[1])
    assert "continues although actor_000 has stopped for good (status 79)" in warning
    assert failed_services.check(processes, 8, joined=[1]) == []
    assert failed_services.warnings == (warning,)


@pytest.mark.parametrize("status", [ExitStatus.CONFIGURATION, ExitStatus.GAVE_UP])
def test_a_run_whose_last_actor_gave_up_ends_with_its_status(status: ExitStatus) -> None:
    failed_services, processes = FailedServices(), [gave_up("actor_000"), gave_up("actor_001", status)]
    processes[0] = gave_up("actor_000", status)
    with pytest.raises(RunFailedError) as raised:
        failed_services.check(processes, 7, joined=[0, 1])
    wanted = ExitStatus.CONFIGURATION if status == ExitStatus.CONFIGURATION else ExitStatus.FAILED
    assert raised.value.exit_status == wanted


def test_an_outside_actor_keeps_a_run_alive() -> None:
    failed_services, processes = FailedServices(), [gave_up("actor_000"), gave_up("actor_001")]
    assert len(failed_services.check(processes, 7, joined=[1000])) == 2


def test_actors_that_keep_failing_do_not_keep_a_run_alive() -> None:
    failed_services = FailedServices()

    def started(time: int) -> list[ProcessState]:
        return [service(f"actor_{n:03d}", pid=10 * time + n) for n in range(2)]

    for time in range(1, 4):
        assert failed_services.check(started(time), 0, joined=[0, 1]) == []
    with pytest.raises(RunFailedError, match="keeps ending"):
        failed_services.check(started(4), 0, joined=[0, 1])


def test_in_lock_step_mode_every_actor_counts() -> None:
    with pytest.raises(RunFailedError):
        FailedServices(every_actor_counts=True).check(
            [gave_up("actor_000"), service("actor_001")], 7, joined=[1]
        )


@pytest.mark.parametrize(("name", "is_needed"), [("learner", True), ("broker", True), ("evaluator", False)])
def test_a_run_needs_its_learner_and_its_broker(name: str, is_needed: bool) -> None:
    failed_services, processes = FailedServices(), [gave_up(name), service("actor_000")]
    if is_needed:
        with pytest.raises(RunFailedError):
            failed_services.check(processes, 7, joined=[0])
    else:
        assert len(failed_services.check(processes, 7, joined=[0])) == 1


def test_faults_of_an_actor_are_reported_once_and_counted_in_the_summary() -> None:
    failed_services = FailedServices()
    reports = [
        ActorReport(),
        ActorReport(deaths=1, last_death="SIGSEGV"),
        ActorReport(deaths=2, last_death="x"),
    ]
    assert [len(failed_services.new_faults({0: report})) for report in reports] == [0, 1, 0]
    assert failed_services.warnings == ("actor_000 ended 2 times by its own fault: x",)
