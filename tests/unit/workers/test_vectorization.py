"""Environments are stepped in the fastest way there is, and show the same whichever that is."""

import logging
from typing import Any

import numpy as np
import pytest

from dppo_redis.environments import make
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.run_plan import plan
from dppo_redis.protocol.spec import RunDescription
from tests.factories import copied, make_config, make_policy, spaces_of
from workers import build
from workers.build import build_collector
from workers.sampling.vectorization import Chosen, make_fastest_vector

SLOW, QUICK, NATIVE = "tests.envs:Slow-v0", "tests.envs:Terminating-v0", "CartPole-v1"
T = 6


def description(env_id: str, **knobs: Any) -> RunDescription:
    config = make_config(env_id=env_id, envs_per_actor=2, rollout_steps=T, ppo={"batch_steps": 24}, **knobs)
    return plan(config, spaces_of(config), serial=False).description


def sampled(of: RunDescription, rollouts: int = 2) -> tuple[str, list[Rollout]]:
    collector = build_collector(of, None, slot=0, boot=1, builds=0)
    try:
        policy = make_policy(of.spec)
        played = [copied(collector.collect(policy)) for _ in range(rollouts)]
        assert collector.step_ms is not None
        return collector.vectorization, played
    finally:
        collector.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "kind"),
    [(SLOW, {"ms": 10}, "async"), (QUICK, {"length": 4}, "sync"), (NATIVE, {}, "native")],
)
def test_auto_takes_what_fits_and_says_so(
    env_id: str, kwargs: dict[str, Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dppo"):
        found, _ = sampled(description(env_id, env_kwargs=kwargs), rollouts=1)
    assert found == kind
    assert f"({kind})" in caplog.text


@pytest.mark.parametrize("lock_step", [False, True])
def test_the_choice_changes_no_number(lock_step: bool) -> None:
    """A slow environment, whose episodes end within a rollout, by itself and as told."""
    knobs: dict[str, Any] = {"env_kwargs": {"ms": 4, "length": 4}, "lock_step": lock_step}
    kinds = {}
    for asked in ("auto", "sync", "async", "threads"):
        kinds[asked] = sampled(description(SLOW, vectorization=asked, **knobs))
    assert [kind for kind, _ in kinds.values()] == ["async", "sync", "async", "threads"]
    for asked in ("auto", "async", "threads"):
        for one, other in zip(kinds[asked][1], kinds["sync"][1], strict=True):
            for name, array in vars(one).items():
                if lock_step or name != "log_probs":  # a policy that answers one row rounds differently
                    np.testing.assert_array_equal(array, getattr(other, name), err_msg=name)
                else:
                    np.testing.assert_allclose(array, getattr(other, name), atol=1e-6)


def test_only_one_environment_is_there_while_a_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A licence for two copies is no licence for three."""
    living: list[int] = []
    most = 0
    original = make.make_single

    def counted(*arguments: Any) -> Any:
        nonlocal most
        env = original(*arguments)
        living.append(id(env))
        most = max(most, len(living))
        close = env.close

        def closed() -> None:
            living.remove(id(env)) if id(env) in living else None
            close()

        env.close = closed  # type: ignore[method-assign]
        return env

    monkeypatch.setattr(make, "make_single", counted)
    of = description(QUICK)
    vector = make_fastest_vector(of.spec.environment, 2, "auto", masked=False)
    assert most == 2
    vector.close()


def test_a_step_is_measured_once(caplog: pytest.LogCaptureFixture) -> None:
    of, chosen = description(QUICK), Chosen()
    with caplog.at_level(logging.INFO, "dppo"):
        for _ in range(3):
            make_fastest_vector(of.spec.environment, 2, "auto", masked=False, chosen=chosen).close()
    assert caplog.text.count("stepping 2 environments") == 1


@pytest.mark.parametrize("lock_step", [False, True])
def test_where_processes_cannot_start_auto_continues_without_them(
    lock_step: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(make, "AsyncVectorEnv", refused)
    monkeypatch.setattr(build, "EnvironmentProcesses", refused)
    with caplog.at_level(logging.INFO, "dppo"):
        found, _ = sampled(description(SLOW, env_kwargs={"ms": 10}, lock_step=lock_step), rollouts=1)
    assert found == "sync"
    assert "not stepping in worker processes: BlockingIOError" in caplog.text
    assert "(sync): processes would be faster, but they could not be started" in caplog.text
