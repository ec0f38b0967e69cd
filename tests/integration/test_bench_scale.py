"""`dppo-redis bench scale`: many real actors in few processes, and what is counted of them."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.scale.command import main
from tests.conftest import wait_until

SMALL = ["--seconds", "2", "--period", "0.4", "--processes", "2"]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The command installs its own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main([*arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == 0, found["points"]
    return found


def test_twenty_actors_come_and_go_and_every_rollout_is_accounted_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = measured(capsys, "--actors", "20", *SMALL, "--churn", "20")
    (point,) = found["points"]
    ledger = point["ledger"]
    assert ledger["entries_added"] == point["pushed"] > 20
    assert ledger["trained"] + ledger["stale"] + ledger["backlog"] == ledger["entries_added"]
    assert ledger["imbalance"] == 0
    assert point["left"] > 0
    assert 20 <= point["joined"] <= 20 + point["left"]
    assert point["connections"] >= 2 * 20
    assert len(point["status_s"]) > 0
    assert len(found["samples"]["20"]) == 5
    assert found["spread"][0] <= found["ratio"] <= found["spread"][1]
    assert found["ratio"] > 0


@pytest.mark.slow
def test_the_actors_of_a_killed_process_are_forgotten_and_their_rollouts_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = measured(capsys, "--actors", "200", "--seconds", "24")
    (point,) = found["points"]
    assert point["killed"] == 50
    assert point["outlived"] == 0
    assert point["joined"] >= 200


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--actors", "0"], "actors: from 1 to 4096"),
        (["--actors", "10", "5000"], "actors: from 1 to 4096"),
        (["--seconds", "0"], "seconds: from"),
        (["--seconds", "2", "--period", "1"], "seconds: at least 5 times the period, 5"),
        (["--processes", "0"], "processes: from"),
        (["--churn", "-1"], "churn: from"),
    ],
)
def test_impossible_sizes_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        main(arguments)


def test_more_actors_than_the_limit_of_open_files_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (256, 1024))
    with pytest.raises(ConfigurationError, match=r"1024 open files are allowed .*prlimit"):
        main(["--actors", "1000"])


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="dppo-") as path:
        yield Path(path)


def test_a_stopped_benchmark_leaves_no_process_no_directory_and_no_table(short_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_path)}
    command = [sys.executable, "-m", "ops", "bench", "scale", "--actors", "2", "--processes", "1"]
    benchmark = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: children_of(benchmark.pid, "bench.scale.actors") != [], 30, "its actors start")
        started = children_of(benchmark.pid)
        benchmark.send_signal(signal.SIGTERM)
        out, _ = benchmark.communicate(timeout=60)
    finally:
        benchmark.kill()
        benchmark.wait()
    assert (benchmark.returncode, out) == (128 + signal.SIGTERM, b"")
    assert list(short_path.iterdir()) == []
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


def children_of(pid: int, kind: str = "") -> list[int]:
    """Processes that this one has started, with `kind` in their command lines."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if kind in Path(f"/proc/{child}/cmdline").read_text()]
