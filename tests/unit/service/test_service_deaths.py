"""The deaths of a service: their count, the next process's pause, and the final one."""

import signal
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.service.service_deaths import (
    DIRECTORY_VARIABLE,
    MOST_DEATHS,
    SERVICE_VARIABLE,
    Deaths,
    TooManyDeathsError,
    file_of,
    is_supervised,
    read_deaths,
    write_file,
)

FAULTS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP")


def exited(status: int) -> int:
    """A status as `waitpid` answers it, of a process that ended by itself."""
    return status << 8


def killed(name: str) -> int:
    return int(getattr(signal, name))


@pytest.mark.parametrize("wait_status", [exited(1), exited(3), exited(70), *map(killed, FAULTS)])
def test_an_end_by_its_own_fault_counts(wait_status: int) -> None:
    deaths = Deaths().after(wait_status, 8.0, "no licence")
    assert (deaths.in_a_row, deaths.faults, deaths.killed) == (1, 1, 0)
    assert deaths.last.endswith(": no licence")


@pytest.mark.parametrize("wait_status", [exited(ExitStatus.TERMINATED), *map(killed, FROM_OUTSIDE)])
def test_killed_processes_are_counted_separately_and_never_final(wait_status: int) -> None:
    deaths = Deaths()
    for _ in range(3 * MOST_DEATHS):
        deaths = deaths.after(wait_status, 0.1, "its last line")
    assert (deaths.in_a_row, deaths.faults, deaths.killed) == (0, 0, 3 * MOST_DEATHS)
    assert deaths.last.startswith("killed by SIG")
    assert deaths.pause_s == 0
    deaths.check()


@pytest.mark.parametrize("status", [ExitStatus.DONE, ExitStatus.CONFIGURATION, ExitStatus.GAVE_UP])
def test_an_end_that_was_meant_is_no_death(status: ExitStatus) -> None:
    before = Deaths(in_a_row=4, faults=5, killed=1, last="SIGSEGV")
    assert before.after(exited(status), 3.0) == before


def test_pauses_grow_with_the_count_and_the_tenth_in_a_row_is_the_last() -> None:
    deaths, pauses = Deaths(), []
    for _ in range(MOST_DEATHS - 1):
        deaths = deaths.after(killed("SIGSEGV"), 8.0)
        deaths.check()
        pauses.append(deaths.pause_s)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    with pytest.raises(TooManyDeathsError, match="10 times in a row, the last time with SIGSEGV") as raised:
        deaths.after(killed("SIGSEGV"), 8.0).check()
    assert raised.value.exit_status == ExitStatus.GAVE_UP


@pytest.mark.parametrize(("minutes", "left"), [(9, 9), (10, 5), (20, 3), (60, 1), (10**9, 1)])
def test_ten_minutes_of_life_halve_the_count(minutes: int, left: int) -> None:
    deaths = Deaths(in_a_row=8, faults=8).after(exited(1), 60.0 * minutes)
    assert (deaths.in_a_row, deaths.faults) == (left, 9)


def test_a_service_reads_its_own_file_and_one_by_hand_has_none(tmp_path: Path) -> None:
    deaths = Deaths(2, 3, 4, "SIGSEGV")
    write_file(file_of(tmp_path, "actor_003"), deaths)
    environment = {DIRECTORY_VARIABLE: str(tmp_path), SERVICE_VARIABLE: "actor_003"}
    assert (read_deaths(environment), is_supervised(environment)) == (deaths, True)
    assert read_deaths({**environment, SERVICE_VARIABLE: "actor_004"}) == Deaths()
    assert (read_deaths({}), is_supervised({})) == (Deaths(), False)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"other": 1}', bytes(range(230, 250))])
def test_a_damaged_file_is_like_none(tmp_path: Path, content: bytes) -> None:
    file_of(tmp_path, "actor_003").write_bytes(content)
    assert read_deaths({DIRECTORY_VARIABLE: str(tmp_path), SERVICE_VARIABLE: "actor_003"}) == Deaths()
