"""The rendered configuration, read by supervisord's own parser."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor.datatypes import RestartWhenExitUnexpected
from supervisor.options import ServerOptions

from dppo_redis.errors import ConfigurationError, ExitStatus
from ops.fleet.render import LEARNER_STOP_WAIT_S, FleetPlan, render

PYTHON = "/opt/venv/bin/python3"


def make_plan(
    directory: Path,
    *,
    actors: int = 2,
    broker: Sequence[str] | None = ("/usr/bin/redis-server", "--save", ""),
) -> FleetPlan:
    """A plan below `directory`, whose folders exist, because supervisord insists."""
    for name in ("run/logs", "private", "work"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return FleetPlan(
        run="cartpole-1",
        run_dir=directory / "run",
        private_dir=directory / "private",
        working_dir=directory / "work",
        python=PYTHON,
        actors=actors,
        broker_command=broker,
    )


def parse(plan: FleetPlan) -> Any:
    """Parse the configuration with supervisord."""
    file = plan.private_dir / "supervisord.conf"
    file.write_text(render(plan), encoding="utf-8")
    options = ServerOptions()
    options.realize(args=["-n", "-c", str(file)])
    return options


def programs(plan: FleetPlan) -> dict[str, Any]:
    """Process name to its settings."""
    groups = parse(plan).process_group_configs
    return {process.name: process for group in groups for process in group.process_configs}


def command(process: Any) -> list[str]:
    return shlex.split(process.command)


PLACES = ["plain", "with a space", "100%", "%(x)s", "%d and %%", "quote's", 'double"quote', "a;b#c", "ünï"]


@pytest.mark.parametrize("place", PLACES)
class TestPaths:
    def test_the_run_directory_reaches_the_learner_unchanged(self, tmp_path: Path, place: str) -> None:
        plan = make_plan(tmp_path / place)
        expected = [PYTHON, "-P", "-m", "learner", "--run", "cartpole-1", "--run-dir", str(plan.run_dir)]
        assert command(programs(plan)["learner"]) == expected

    def test_logs_are_in_the_run_directory(self, tmp_path: Path, place: str) -> None:
        plan = make_plan(tmp_path / place)
        logs = {name: process.stdout_logfile for name, process in programs(plan).items()}
        assert logs == {name: str(plan.run_dir / "logs" / f"{name}.log") for name in logs}
        assert parse(plan).logfile == str(plan.run_dir / "logs" / "supervisord.log")

    def test_services_start_in_the_users_directory(self, tmp_path: Path, place: str) -> None:
        plan = make_plan(tmp_path / place)
        assert parse(plan).directory == str(plan.working_dir)

    def test_the_control_socket_is_in_the_private_directory(self, tmp_path: Path, place: str) -> None:
        plan = make_plan(tmp_path / place)
        (server,) = parse(plan).server_configs
        assert server["file"] == str(plan.control_socket)
        assert server["chmod"] == 0o700

    def test_the_brokers_command_is_unchanged(self, tmp_path: Path, place: str) -> None:
        words = ["/usr/bin/redis-server", "--dir", f"/tmp/{place}", "--save", "", "--name", "100% of it"]
        broker = command(programs(make_plan(tmp_path, broker=words))["broker"])
        assert broker == [PYTHON, "-P", "-m", "ops.fleet.run_tied", *words]


@pytest.mark.parametrize("place", ["line\nbreak", "a ;comment", "a #comment", "a\ttab;b", "a\rb"])
def test_a_path_that_the_format_cannot_hold_is_refused_by_name(tmp_path: Path, place: str) -> None:
    plan = replace(make_plan(tmp_path), run_dir=tmp_path / place)
    with pytest.raises(ConfigurationError, match="choose another"):
        render(plan)


class TestActors:
    @pytest.mark.parametrize("count", [1, 8, 64])
    def test_each_actor_has_its_own_slot_name_and_log(self, tmp_path: Path, count: int) -> None:
        plan = make_plan(tmp_path, actors=count)
        actors = [p for name, p in programs(plan).items() if name.startswith("actor_")]
        slots = [int(command(actor)[-1]) for actor in actors]
        assert sorted(slots) == list(range(count))
        assert len({actor.stdout_logfile for actor in actors}) == count
        assert {actor.name for actor in actors} == {f"actor_{slot:03d}" for slot in range(count)}

    def test_an_actor_gets_its_run_and_slot_as_its_only_arguments(self, tmp_path: Path) -> None:
        actor = command(programs(make_plan(tmp_path))["actor_001"])
        assert actor == [PYTHON, "-P", "-m", "workers", "--run", "cartpole-1", "--slot", "1"]


@pytest.mark.parametrize("place", PLACES)
def test_each_service_gets_an_event_log_of_its_own(tmp_path: Path, place: str) -> None:
    plan = replace(make_plan(tmp_path, broker=None), event_log=tmp_path / place)
    files = {}
    for name, process in programs(plan).items():
        words = command(process)
        files[name] = words[words.index("--event-log") + 1]
    assert files == {name: str(tmp_path / place / f"{name}.jsonl") for name in files}
    assert len(files) == 4


class TestSupervision:
    def test_actors_stop_first_and_the_broker_last(self, tmp_path: Path) -> None:
        groups = sorted(parse(make_plan(tmp_path)).process_group_configs, key=lambda group: -group.priority)
        assert [group.name for group in groups] == ["actor", "evaluator", "learner", "broker"]

    def test_services_are_restarted_unless_they_have_finished_or_are_misconfigured(
        self, tmp_path: Path
    ) -> None:
        found = programs(make_plan(tmp_path))
        for name in ("learner", "evaluator", "actor_000"):
            assert found[name].autorestart is RestartWhenExitUnexpected
            assert found[name].exitcodes == [
                ExitStatus.DONE,
                ExitStatus.IO_ERROR,
                ExitStatus.CONFIGURATION,
                ExitStatus.GAVE_UP,
            ]
            assert found[name].startsecs == 1

    def test_the_learner_has_time_to_save(self, tmp_path: Path) -> None:
        assert programs(make_plan(tmp_path))["learner"].stopwaitsecs == LEARNER_STOP_WAIT_S

    def test_services_and_their_child_processes_are_stopped_with_sigterm(self, tmp_path: Path) -> None:
        for process in programs(make_plan(tmp_path)).values():
            assert (process.stopsignal, process.stopasgroup, process.killasgroup) == (15, True, True)

    def test_logs_are_rotated(self, tmp_path: Path) -> None:
        for process in programs(make_plan(tmp_path)).values():
            assert process.redirect_stderr
            assert process.stdout_logfile_maxbytes == 5 * 2**20
            assert process.stdout_logfile_backups == 1

    def test_each_service_has_one_compute_thread(self, tmp_path: Path) -> None:
        for process in programs(make_plan(tmp_path)).values():
            assert process.environment["OMP_NUM_THREADS"] == "1"

    def test_a_run_on_a_shared_redis_starts_no_broker(self, tmp_path: Path) -> None:
        assert sorted(programs(make_plan(tmp_path, broker=None))) == [
            "actor_000",
            "actor_001",
            "evaluator",
            "learner",
        ]

    def test_no_address_and_so_no_password_is_in_the_file(self, tmp_path: Path) -> None:
        assert "redis://" not in render(make_plan(tmp_path, broker=None))
        assert "--redis" not in render(make_plan(tmp_path, broker=None))
