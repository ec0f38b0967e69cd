"""The measured time of a step, and the vectorization that follows from it."""

import time

import pytest

from dppo_redis.environments.make import make_single
from dppo_redis.environments.step_time import LONGEST_S, StepTime, choose, measure
from tests.factories import TERMINATING, source

MS = 0.001


@pytest.mark.parametrize(
    ("wall_ms", "cpu_ms", "count", "cores", "stepping"),
    [
        (0.02, 0.02, 8, 7, "sync"),  # CartPole: processes would cost more than its step
        (0.9, 0.0, 64, 7, "sync"),  # too short, whatever it waits for
        (5.0, 0.1, 8, 1, "async"),  # it waits: 5 + 0.8 + 2 ms instead of 40
        (30.0, 0.1, 8, 1, "async"),
        (30.0, 30.0, 8, 1, "sync"),  # it computes, and there is one core
        (30.0, 30.0, 8, 7, "async"),  # it computes, and there are seven: 34 + 2 ms instead of 240
        (30.0, 20.0, 8, 1, "sync"),  # 10 + 160 + 2 ms instead of 240 is too little
        (30.0, 30.0, 1, 7, "sync"),  # nothing to do at the same time
        (2.0, 9.0, 8, 1, "sync"),  # more computing than time, by threads of its own
    ],
)
def test_choices_worked_by_hand(wall_ms: float, cpu_ms: float, count: int, cores: int, stepping: str) -> None:
    choice = choose(StepTime(wall_ms * MS, cpu_ms * MS), count, cores)
    assert choice.stepping == stepping
    assert f"{wall_ms:.3g} ms" in choice.reason


def test_a_step_that_sleeps_is_measured_as_waiting() -> None:
    step = measure(make_single(source("tests.envs:Slow-v0", ms=20)))
    assert step is not None
    assert 0.02 <= step.wall_s < 0.1
    assert step.cpu_s < 0.01


def test_measuring_is_bounded_and_draws_nothing_from_the_environments_own_space() -> None:
    env = make_single(source("tests.envs:Slow-v0", ms=60))
    env.action_space.seed(5)
    began = time.monotonic()
    measure(env)
    assert time.monotonic() - began < LONGEST_S + 1.0, "two steps, on a busy machine"
    drawn = [int(env.action_space.sample()) for _ in range(20)]
    env.action_space.seed(5)
    assert drawn == [int(env.action_space.sample()) for _ in range(20)]


def test_an_environment_that_raises_is_not_judged() -> None:
    assert measure(make_single(source("tests.envs:RaisesInStep-v0", at=2))) is None


def test_an_episode_that_ends_is_followed_by_a_new_one() -> None:
    assert measure(make_single(source(TERMINATING, length=1))) is not None
