"""A fleet's needs and the limits of this machine."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from ops.fleet import machine_limits
from ops.fleet.machine_limits import FleetNeeds, check_limits, needs_of
from tests.factories import make_config


class TestNeeds:
    def test_needs_grow_with_actors_and_with_environments_in_processes(self) -> None:
        few, many, apart = (
            needs_of(make_config(actors=actors, envs_per_actor=16, vectorization=how), has_server=True)
            for actors, how in ((2, "sync"), (200, "sync"), (2, "async"))
        )
        assert many.files >= few.files + 198 * 3
        assert many.tasks >= few.tasks + 198 * 2
        assert apart.tasks == few.tasks + 2 * 16

    def test_a_usual_fleet_fits_into_usual_limits(self) -> None:
        needs = needs_of(make_config(actors=8), has_server=True)
        assert (needs.files <= 256, needs.tasks <= 100) == (True, True)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """Limits that a test sets instead of the system's."""
    kept: dict[int, tuple[int, int]] = {
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_NPROC: (1024, 4096),
    }
    monkeypatch.setattr(resource, "getrlimit", kept.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", kept.__setitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine_limits, "_tasks_of_this_user", lambda: 30)
    return kept


class TestChecking:
    def test_a_soft_limit_is_raised_to_the_need(self, allowed: dict[int, tuple[int, int]]) -> None:
        check_limits(FleetNeeds(2000, 1020))
        assert allowed == {resource.RLIMIT_NOFILE: (2000, 4096), resource.RLIMIT_NPROC: (1050, 4096)}

    @pytest.mark.parametrize("enough", [(1024, 4096), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)])
    def test_a_sufficient_limit_is_not_changed(
        self, allowed: dict[int, tuple[int, int]], enough: tuple[int, int]
    ) -> None:
        for limit in allowed:
            allowed[limit] = enough
        check_limits(FleetNeeds(200, 100))
        assert set(allowed.values()) == {enough}

    @pytest.mark.parametrize(
        ("limit", "message"),
        [
            (resource.RLIMIT_NOFILE, "but 60 open files are allowed"),
            (resource.RLIMIT_NPROC, "but 60 are allowed .ulimit -u., and this user has 30 already"),
        ],
    )
    def test_a_limit_that_is_too_low_is_refused_with_both_numbers(
        self, allowed: dict[int, tuple[int, int]], limit: int, message: str
    ) -> None:
        allowed[limit] = (60, 60)
        needed = "this fleet needs 200 open files in a process and 100 processes and threads"
        with pytest.raises(ConfigurationError, match=f"{needed}.*{message}"):
            check_limits(FleetNeeds(200, 100))

    def test_a_limit_of_processes_does_not_bind_root(
        self, allowed: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        allowed[resource.RLIMIT_NPROC] = (60, 60)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        check_limits(FleetNeeds(200, 100))


def test_the_processes_of_this_user_are_counted_with_their_threads() -> None:
    before = machine_limits._tasks_of_this_user()
    program = "import threading as t; t.Thread(target=t.Event().wait, daemon=True).start(); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        mine = sum(1 for _ in Path(f"/proc/{child.pid}/task").iterdir())
        assert mine == 2
        assert machine_limits._tasks_of_this_user() >= mine
        child.kill()
    assert before > 0
