"""Final errors end at once, other errors of environments are retried."""

import logging
import time
from typing import Any

import gymnasium
import pytest

from dppo_redis.environments import make
from dppo_redis.environments.child import inspect_in_child
from dppo_redis.environments.failures import until_it_passes
from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_single, make_vector
from dppo_redis.errors import (
    ConfigurationError,
    EnvironmentBrokenError,
    EnvironmentHangsError,
    StoppedError,
)
from dppo_redis.protocol.spec import EnvironmentSource
from dppo_redis.service.shutdown import StopRequest
from tests.envs.episodes import FixedLength
from tests.factories import TERMINATING, source


class Wild(FixedLength):
    """Raises a given error in a given method."""

    def __init__(self, what: str = "", where: str = "init", length: int = 3) -> None:
        super().__init__(length)
        self.what, self.where = what, where
        self._fail("init")

    def _fail(self, where: str) -> None:
        if where == self.where:
            exec(self.what)

    def reset(self, **arguments: Any) -> Any:
        self._fail("reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self._fail("step")
        return super().step(action)

    def close(self) -> None:
        CLOSED.append(self)


class HandsOn(Wild):
    """Takes any argument, and hands it on."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)


CLOSED: list[Wild] = []
for made in (Wild, HandsOn):
    gymnasium.register(f"failures/{made.__name__}-v0", entry_point=f"{__name__}:{made.__name__}")
gymnasium.register("failures/NotThere-v0", entry_point="tests.no_such_module:Env")
gymnasium.register("failures/Misspelt-v0", entry_point="tests.envs.episodes:NoSuchEnvironment")


@pytest.mark.parametrize(
    "final",
    [
        source("NoSuch-v0"),
        source("failures/NotThere-v0"),
        source("failures/Misspelt-v0"),
        source("failures/Wild-v0", colour=3),
        source("failures/HandsOn-v0", colour=3),
        source("failures/Wild-v0", what="import no_such_package"),
        source("failures/Wild-v0", what="from os import no_such_name"),
        source("failures/Wild-v0", what="def :"),
        source("failures/Wild-v0", what="raise gymnasium.error.DependencyNotInstalled('pygame')"),
        source("failures/Wild-v0", what="self.observation_space = gymnasium.spaces.Text(3)"),
        source("failures/Wild-v0", "NoSuch"),
        source("failures/Wild-v0", "TimeLimit(colour=3)"),
        source("failures/Wild-v0", "tests.wrappers:Scaled(colour=3)"),
    ],
    ids=str,
)
def test_errors_that_a_retry_would_repeat_are_final(final: EnvironmentSource) -> None:
    with pytest.raises(ConfigurationError):
        inspect(final)


@pytest.mark.parametrize("where", ["init", "reset", "step"])
@pytest.mark.parametrize(
    "what",
    [
        "raise RuntimeError('no licence')",
        "raise OSError('port 1234 is busy')",
        "raise SystemExit('no display')",
        "len(3)",
        "(lambda: 0)(colour=3)",
        "assert False, 'the simulator is not up'",
    ],
)
def test_all_other_errors_may_pass(what: str, where: str) -> None:
    with pytest.raises(EnvironmentBrokenError):
        inspect(source("failures/Wild-v0", what=what, where=where))


def test_a_wrapper_of_the_users_that_raises_may_pass() -> None:
    with pytest.raises(EnvironmentBrokenError, match="no licence"):
        make_single(source(TERMINATING, "tests.unit.environments.test_failures:Unlicensed"))


class Unlicensed(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:  # noqa: ARG002
        raise RuntimeError("no licence")


def failing(times: int) -> Any:
    """An attempt that fails `times` times and then succeeds."""
    left = [times]

    def attempt() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise EnvironmentBrokenError(f"busy, {left[0]} left") from RuntimeError("the cause")
        return "built"

    return attempt


def test_an_attempt_is_retried_until_it_passes_and_its_first_traceback_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "dppo"):
        assert until_it_passes(failing(3), 30, StopRequest()) == "built"
    assert caplog.text.count("RuntimeError: the cause") == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "WARNING"]


def test_an_attempt_is_given_up_after_its_time() -> None:
    with pytest.raises(EnvironmentBrokenError, match=r"busy, .*tried again for 1 s, see env_retry_s"):
        until_it_passes(failing(100), 1, StopRequest())


def test_without_retry_time_there_is_one_attempt() -> None:
    with pytest.raises(EnvironmentBrokenError, match=r"busy, 99 left$"):
        until_it_passes(failing(100), 0, StopRequest())


@pytest.mark.parametrize("error", [EnvironmentHangsError("hangs"), ConfigurationError("refused")], ids=repr)
def test_hanging_and_refused_environments_are_not_retried(error: Exception) -> None:
    calls = []

    def attempt() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        until_it_passes(attempt, 30, StopRequest())
    assert calls == [1]


def test_a_stop_ends_the_attempts() -> None:
    stop = StopRequest()

    def attempt() -> None:
        stop.request()
        raise EnvironmentBrokenError("busy")

    with pytest.raises(StoppedError):
        until_it_passes(attempt, 30, stop)


def test_a_crash_is_tried_again(tmp_path: Any) -> None:
    crashed = tmp_path / "crashed"
    what = f"import os, ctypes\nif not os.path.exists({str(crashed)!r}):\n open({str(crashed)!r}, 'w'); "
    found = inspect_in_child(
        source("failures/Wild-v0", what=what + "ctypes.string_at(0)"), use_mask=True, limit_s=30, retry_s=30
    )
    assert found == inspect(source("failures/Wild-v0"))
    assert crashed.exists()


def test_copies_that_were_built_are_closed_where_one_of_a_vector_cannot_be(tmp_path: Any) -> None:
    """Two copies of a licence for two, asked for three."""
    file = tmp_path / "used"
    what = f"f = open({str(file)!r}, 'a+'); f.seek(0); n = len(f.read()); f.write('x'); f.close()\n"
    CLOSED.clear()
    with pytest.raises(EnvironmentBrokenError, match="all used"):
        make_vector(
            source("failures/Wild-v0", what=what + "if n >= 2: raise RuntimeError('all used')"), 3, "sync"
        )
    assert len(CLOSED) == 2


def test_closing_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Endless(gymnasium.Env[Any, Any]):
        def close(self) -> None:
            time.sleep(600)

    monkeypatch.setattr(make, "CLOSE_LIMIT_S", 0.1)
    make.close_quietly(Endless())
    assert "it did not return within 0.1 s" in caplog.text
