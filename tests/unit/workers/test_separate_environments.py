"""Environments in processes and threads of their own: what they show, and how they fail and end."""

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, StoppedError
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.descendants import descendants
from dppo_redis.service.shutdown import StopRequest
from tests.conftest import wait_until
from tests.factories import copied, make_policy, make_spec
from tests.unit.workers.test_free_collector import SPECS, T, assert_equal, in_lock_step, spec_of
from workers.sampling.free_collector import FreeCollector
from workers.seeding import actor_seeds
from workers.separate.call_clock import CallClock
from workers.separate.one_environment import EnvironmentPlan
from workers.separate.processes import EnvironmentProcesses
from workers.separate.threads import EnvironmentThreads

N = 3
Kind = Callable[[list[EnvironmentPlan], CallClock], Any]
BOTH = pytest.mark.parametrize("kind", [EnvironmentProcesses, EnvironmentThreads])


def started(kind: Kind, spec: Spec, calls: CallClock | None = None, **more: Any) -> FreeCollector:
    environments = kind(EnvironmentPlan.of(spec, list(range(N)), CopyNumber("actor")), calls or CallClock())
    try:
        return FreeCollector(environments, spec, actor_seeds(1, slot=0, boot=0, count=N).sampling, **more)
    except BaseException:
        environments.close()
        raise


def slow(**kwargs: Any) -> Spec:
    return make_spec(env_id="tests.envs:Slow-v0", env_kwargs=kwargs, rollout_steps=T)


@BOTH
@pytest.mark.parametrize("name", ["cut off", "metrics", "named parts", "image", "mask"])
def test_they_show_what_environments_in_lock_step_show(kind: Kind, name: str) -> None:
    spec = spec_of(**SPECS[name])
    policy = make_policy(spec)
    collector = started(kind, spec, together=True)
    try:
        assert_equal([copied(collector.collect(policy)) for _ in range(3)], in_lock_step(spec, policy, 3))
        assert collector.step_ms is not None
    finally:
        collector.close()


@BOTH
def test_an_environment_that_raises_is_named_and_ends_all_of_them(kind: Kind) -> None:
    spec = make_spec(env_id="tests.envs:RaisesInStep-v0", env_kwargs={"at": 9}, rollout_steps=T)
    before, threads = descendants(), threading.active_count()
    calls = CallClock()
    collector = started(kind, spec, calls, most_open=2)
    policy = make_policy(spec)
    played: list[Rollout] = []

    def play() -> None:
        while True:
            played.append(collector.collect(policy, None, lambda: policy))

    with pytest.raises(EnvironmentBrokenError, match="step raised RuntimeError: the sim") as raised:
        play()
    assert len(played) <= 1
    assert "faults.py" in "".join(traceback.format_exception(raised.value)), "where it was raised"
    collector.close()
    assert not calls.processes
    assert calls.runs_s() == 0
    assert threading.active_count() == threads
    helpers = 2  # of multiprocessing, for all environments: they stay
    assert len(descendants() - before) <= helpers


@BOTH
@pytest.mark.parametrize(
    ("fault", "kwargs", "error", "words"),
    [
        ("RaisesInReset", {"at": 1}, EnvironmentBrokenError, "reset raised RuntimeError"),
        ("Busy", {"port": "/"}, EnvironmentBrokenError, "port 1234 is busy"),
        ("Slow", {"pause": 1}, ConfigurationError, "unexpected keyword argument 'pause'"),
        ("LeavesInStep", {}, EnvironmentBrokenError, "step raised SystemExit: no display"),
        ("Number", {}, EnvironmentBrokenError, "this environment observes"),
    ],
)
def test_what_goes_wrong_is_said_in_the_words_of_lock_step(
    kind: Kind, fault: str, kwargs: dict[str, Any], error: type[Exception], words: str
) -> None:
    spec = make_spec(env_id=f"tests.envs:{fault}-v0", env_kwargs=kwargs, rollout_steps=T)
    calls = CallClock()

    def play() -> None:
        with contextlib.closing(started(kind, spec, calls)) as collector:
            collector.collect(make_policy(spec))

    with pytest.raises(error, match=words):
        play()
    assert not calls.processes
    assert not calls.elsewhere


def test_a_process_that_is_killed_is_noticed() -> None:
    calls = CallClock()
    collector = started(EnvironmentProcesses, slow(ms=3_600_000, quick=4), calls)
    killer = threading.Thread(target=lambda: _kill_when_slow(calls), daemon=True)
    killer.start()
    try:
        with pytest.raises(EnvironmentBrokenError, match="a worker process of the environments died"):
            collector.collect(make_policy(collector.spec))
    finally:
        collector.close()
        killer.join()


def _kill_when_slow(calls: CallClock) -> None:
    wait_until(lambda: calls.runs_s() > 0.1, 10, "a step takes long")
    os.kill(next(one.pid for one in calls.processes if one.pid), signal.SIGKILL)


@BOTH
def test_a_step_that_hangs_is_seen_by_the_watchdog_and_a_stop_does_not_wait_for_it(kind: Kind) -> None:
    calls, stop = CallClock(), StopRequest()
    collector = started(kind, slow(ms=2500, quick=4), calls)

    def stop_when_slow() -> None:
        wait_until(lambda: calls.runs_s() > 0.1, 10, "a step takes long")
        stop.request()

    stopper = threading.Thread(target=stop_when_slow, daemon=True)
    stopper.start()
    with pytest.raises(StoppedError):
        collector.collect(make_policy(collector.spec), stop)
    assert calls.runs_s() > 0.1
    collector.close()
    stopper.join()
    assert calls.runs_s() == 0


@BOTH
def test_a_slow_environment_does_not_hold_back_the_others(kind: Kind) -> None:
    """Copy 0 sleeps in each step."""
    spec = make_spec(
        env_id="tests.envs:SlowFirst-v0", env_kwargs={"copy": "{copy}", "ms": 30}, rollout_steps=T
    )
    collector = started(kind, spec, most_open=3)
    policy = make_policy(spec)
    try:
        collector.collect(policy, None, lambda: policy)
        steps = collector.environments.page.steps
        assert steps[0] == T
        assert steps[1:].tolist() == [3 * T] * (N - 1)
    finally:
        collector.close()


def test_arrays_of_a_page_are_aligned() -> None:
    spec = spec_of(**SPECS["named parts"])
    environments = EnvironmentThreads(EnvironmentPlan.of(spec, [0, 1, 2], CopyNumber("actor")), CallClock())
    try:
        for name in ("rewards", "began", "stepping_s", "steps"):
            assert getattr(environments.page, name).flags.aligned
        assert environments.page.rewards.dtype == np.float64
    finally:
        environments.close()
