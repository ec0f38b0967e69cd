"""What an actor does before it joins: look at its environment, and at how the one before it ended."""

import os
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.service_deaths import MOST_DEATHS, Deaths, TooManyDeathsError
from dppo_redis.service.shutdown import StopRequest
from tests.factories import describe
from workers.join import check_environment_patiently, pause_after_deaths
from workers.watchdog import CallClock


def description(env_id: str, env_retry_s: float, **env_kwargs: Any) -> RunDescription:
    return describe(RunConfig(env_id=env_id, env_kwargs=env_kwargs, env_retry_s=env_retry_s))


def check(described: RunDescription, said: list[str], stop: StopRequest | None = None) -> CallClock:
    calls = CallClock()
    check_environment_patiently(described, 3, calls, stop or StopRequest(), said.append)
    return calls


def test_building_a_busy_environment_is_retried_and_each_failure_reported(tmp_path: Path) -> None:
    port, told = tmp_path / "port", list[str]()
    described = description("tests.envs:Busy-v0", 30.0, port=str(port))
    port.touch()

    class Said(list[str]):
        def append(self, text: str) -> None:
            told.append(text)
            port.unlink()

    calls = check(described, Said())
    (text,) = told
    assert "port 1234 is busy" in text
    assert "Traceback" in text
    assert calls.runs_s() == 0


def test_an_attempt_is_given_up_after_its_time(tmp_path: Path) -> None:
    port, said = tmp_path / "port", list[str]()
    described = description("tests.envs:Busy-v0", 0.5, port=str(port))
    port.touch()
    with pytest.raises(EnvironmentBrokenError, match=r"could not be built.*port 1234 is busy"):
        check(described, said)
    assert len(said) >= 2


def test_environments_that_can_never_be_built_are_refused_at_once() -> None:
    described = description("CartPole-v1", 30.0)
    other = describe(RunConfig(env_id="Acrobot-v1"))
    object.__setattr__(described.spec, "observation", other.spec.observation)
    said: list[str] = []
    with pytest.raises(ConfigurationError, match="is not the run's environment"):
        check(described, said)
    assert said == []


def test_a_stop_ends_the_trying(tmp_path: Path) -> None:
    port, stop = tmp_path / "port", StopRequest()
    described = description("tests.envs:Busy-v0", 600.0, port=str(port))
    port.touch()

    class Said(list[str]):
        def append(self, text: str) -> None:
            super().append(text)
            stop.request()

    said = Said()
    check(described, said, stop)
    assert len(said) == 1


def test_the_look_is_numbered_by_the_slot() -> None:
    described = description("tests.envs:Numbered-v0", 30.0)
    check(described, [])
    assert (os.environ["DPPO_ROLE"], os.environ["DPPO_SLOT"]) == ("look", "3")


def pause(deaths: Deaths, stop: StopRequest) -> tuple[list[ActorReport], list[str]]:
    beats: list[ActorReport] = []
    said: list[str] = []
    pause_after_deaths(deaths, beats.append, said.append, stop)
    return beats, said


def test_a_first_process_says_nothing() -> None:
    assert pause(Deaths(), StopRequest()) == ([], [])


def test_a_death_is_reported_and_the_pause_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()

    def sleep(_stop: StopRequest, seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(StopRequest, "sleep", sleep)
    monkeypatch.setattr("workers.join.time.monotonic", lambda: now[0])
    beats, said = pause(Deaths(4, 5, 1, "SIGSEGV: in step"), StopRequest())
    assert sum(slept) == 4.0
    assert [(one.deaths, one.killed, one.last_death) for one in beats] == [(5, 1, "SIGSEGV: in step")] * 4
    assert "SIGSEGV: in step (4 of at most 10 in a row; sampling begins in 4 s)" in said[0]


def test_a_kill_is_named_without_a_pause() -> None:
    beats, said = pause(Deaths(0, 0, 3, "killed by SIGKILL"), StopRequest())
    assert beats == []
    assert "killed by SIGKILL" in said[0]


def test_a_stop_ends_the_pause() -> None:
    stop = StopRequest()
    stop.request()
    assert pause(Deaths(9, 9, 0, "SIGSEGV"), stop)[0] == []


def test_after_ten_failures_in_a_row_it_logs_them_and_gives_up() -> None:
    said: list[str] = []
    with pytest.raises(TooManyDeathsError):
        pause_after_deaths(Deaths(MOST_DEATHS, 20, 0, "status 70"), print, said.append, StopRequest())
    assert "status 70" in said[0]
