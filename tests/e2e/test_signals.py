"""The whole fleet ends with `train`, for each way in which `train` can end."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping

import psutil
import pytest
import redis

from dppo_redis.errors import ExitStatus
from dppo_redis.store.keys import RunKeys
from tests.conftest import wait_until
from tests.e2e.support import (
    ACTOR,
    LEARNER,
    SLOW,
    SUPERVISORD,
    Command,
    assert_books_balance,
    assert_nothing_left,
    tree,
)

# Each environment has its own process: the last option counts.
_ASYNC = ("--vectorization", "async")
_SIGNALS = {
    signal.SIGTERM: ExitStatus.TERMINATED,
    signal.SIGHUP: ExitStatus.TERMINATED,
    signal.SIGINT: ExitStatus.INTERRUPTED,
}
_FLEETS = {
    **{number.name: ("--evaluation.enabled", "false") for number in _SIGNALS},
    "SIGTERM": (),
    "train is killed": _ASYNC,
    "supervisord is killed": (),
}


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Command]]:
    """Five fleets, started at the same time; each test ends its own."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Command(
                    *("train", *SLOW, "--actors", "1", "--json", *options),
                    cwd=tmp_path_factory.mktemp("fleet"),
                )
            )
            for name, options in _FLEETS.items()
        }


def _training(command: Command) -> Command:
    command.wait_for_output("training: ", 60)
    return command


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
def test_the_directory_of_a_living_run_is_refused_with_any_flags(
    fleets: Mapping[str, Command], how: str
) -> None:
    command = _training(fleets["supervisord is killed"])
    _, name = command.how_to_join()
    directory = command.place / "runs" / name
    files = set(tree(directory))
    what = [] if how == "--resume" else SLOW
    with Command("train", *what, "--run-dir", str(directory), how, cwd=command.place) as second:
        assert second.wait(15) == ExitStatus.CONFIGURATION
        assert str(directory) in second.error_lines[-1]
    assert {file for file in files if not file.startswith("checkpoints/")} <= set(tree(directory))


@pytest.fixture(scope="module")
def statuses(fleets: Mapping[str, Command]) -> Mapping[signal.Signals, int]:
    """Exit statuses of the fleets that get a signal, all at the same time."""
    for number in _SIGNALS:
        _training(fleets[number.name]).send(number)
    return {number: fleets[number.name].wait(30) for number in _SIGNALS}


@pytest.mark.parametrize(("number", "status"), _SIGNALS.items(), ids=lambda value: value.name)
def test_a_signal_to_train_stops_cleanly_with_a_summary(
    fleets: Mapping[str, Command],
    statuses: Mapping[signal.Signals, int],
    number: signal.Signals,
    status: ExitStatus,
) -> None:
    command = fleets[number.name]
    assert statuses[number] == status
    assert_nothing_left(command)
    summary = command.summary()
    assert summary["reason"] == "stopped"
    assert summary["updates"] > 0
    assert_books_balance(summary["ledger"])
    assert "summary" in command.err
    assert "Traceback" not in command.err


def _has_received_stop(command: Command) -> bool:
    """Whether the stop has reached the fleet, through Redis or supervisord."""
    directory = next((command.place / "runs").iterdir())
    log = directory / "logs" / "supervisord.log"
    if not command.running or (log.exists() and "received SIGTERM" in log.read_text()):
        return True
    socket = next(command.private.glob("dppo-*/redis.sock"), None)
    if socket is None:
        return False
    with (
        contextlib.suppress(redis.ConnectionError),  # it does not listen yet, or has ended
        redis.Redis(unix_socket_path=str(socket), decode_responses=True, protocol=2) as client,
    ):
        return bool(client.hget(RunKeys(directory.name).control, "state") == "stop")
    return False


def test_a_stop_while_the_fleet_starts_is_clean(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Command("train", *SLOW, "--json", cwd=tmp_path_factory.mktemp("hasty")) as command:
        command.wait_for_output("samples per update")
        command.send(signal.SIGTERM)
        wait_until(lambda: _has_received_stop(command), 7, "the stop has reached the fleet")
        assert command.wait(30) == ExitStatus.TERMINATED
        assert_nothing_left(command)
        summary = command.summary()
        assert (summary["reason"], summary["updates"]) == ("stopped", 0)
        assert "Traceback" not in command.err


def test_an_actor_killed_with_9_takes_its_environment_processes_with_it(
    fleets: Mapping[str, Command],
) -> None:
    command = _training(fleets["train is killed"])
    pid = command.service(*ACTOR)
    environments = psutil.Process(pid).children(recursive=True)
    assert len(environments) >= 2
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(process.is_running() for process in environments), 5, "they are gone")


def test_after_kill_9_of_train_the_whole_fleet_has_ended_within_ten_seconds(
    fleets: Mapping[str, Command],
) -> None:
    command = _training(fleets["train is killed"])
    command.service(*ACTOR)
    command.send(signal.SIGKILL)
    command.wait(5)
    assert_nothing_left(command, deadline_s=10)


def test_after_kill_9_of_supervisord_no_process_is_left_and_train_fails_in_one_line(
    fleets: Mapping[str, Command],
) -> None:
    command = _training(fleets["supervisord is killed"])
    command.service(*LEARNER)
    os.kill(command.service(*SUPERVISORD), signal.SIGKILL)
    assert command.wait(10) == ExitStatus.FAILED
    assert_nothing_left(command, deadline_s=10)
    assert command.error_lines[-1].startswith("dppo-redis: supervisord")
    assert "Traceback" not in command.err
    assert command.summary()["reason"] == "failed"
