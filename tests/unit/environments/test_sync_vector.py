"""Our vector of environments steps as gymnasium's SyncVectorEnv does, array for array."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dppo_redis.environments.plain import PlainEnvironment
from dppo_redis.environments.sync_vector import SameStepVector

COUNT, STEPS = 3, 60


class Odd(gymnasium.Env[Any, Any]):
    """Ends at random, reuses one buffer for all observations, and answers in an unusual type."""

    def __init__(self, seed: int, convert: Callable[[Any], Any], *, is_dict: bool = False) -> None:
        box = Box(-9, 9, (2,), np.float32)
        self.observation_space = Dict({"part": box}) if is_dict else box
        self.action_space = Discrete(2)
        self.random, self.convert, self.is_dict = np.random.default_rng(seed), convert, is_dict
        self.buffer = np.zeros(2, np.float32)

    def _observe(self) -> Any:
        self.buffer[:] = self.random.normal(size=2)
        observation = self.convert(self.buffer)
        return {"part": observation} if self.is_dict else observation

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        del seed, options
        return self._observe(), {"noise": 1}

    def step(self, action: Any) -> Any:
        terminated, truncated = self.random.random(2) < 0.2  # numpy's flags
        reward = (np.float64(action), 1, np.array([2.0]))[self.random.integers(3)]
        return self._observe(), reward, terminated, bool(truncated), {"is_success": terminated}


def same(observation: Any) -> Any:
    return observation


def in_one_buffer(observation: Any, buffer: Any = np.zeros(2)) -> Any:  # noqa: B008 one for all environments
    buffer[:] = observation
    return buffer


CONVERSIONS = {
    "the buffer": same,
    "a list": list,
    "one float64 buffer of all environments": in_one_buffer,
    "float64": np.float64,
    "sometimes float64": lambda x: x if x[0] > 0 else x.astype(np.float64),
}


def vectors(convert: Callable[[Any], Any], is_dict: bool) -> list[SyncVectorEnv]:
    def build(n: int) -> PlainEnvironment:
        return PlainEnvironment(Odd(n, convert, is_dict=is_dict), masked=False)

    builders = [partial(build, n) for n in range(COUNT)]
    return [SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP), SameStepVector(builders)]


def assert_equal(theirs: Any, ours: Any) -> None:
    if isinstance(theirs, dict):
        assert list(theirs) == list(ours)
        for name, value in theirs.items():
            assert_equal(value, ours[name])
    elif isinstance(theirs, np.ndarray):
        assert theirs.dtype == ours.dtype
        if theirs.dtype != np.dtype(object):
            np.testing.assert_array_equal(ours, theirs)
            return
        for one, other in zip(theirs, ours, strict=True):
            assert_equal(one, other)
    else:
        assert theirs == ours


@pytest.mark.parametrize("is_dict", [False, True], ids=["box", "dict"])
@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_each_step_equals_that_of_gymnasium(convert: Callable[[Any], Any], is_dict: bool) -> None:
    theirs, ours = vectors(convert, is_dict)
    assert_equal(theirs.reset(seed=1)[0], ours.reset(seed=1)[0])
    kept = []
    for step in range(STEPS):
        actions = np.arange(step, step + COUNT) % 2
        expected, found = theirs.step(actions), ours.step(actions)
        for one, other in zip(expected, found, strict=True):
            assert_equal(one, other)
        kept.append((expected, found))
    for expected, found in kept:  # no later step has overwritten them
        assert_equal(expected[0], found[0])
        assert_equal(expected[4], found[4])


def play(vector: SyncVectorEnv) -> None:
    vector.reset(seed=1)
    for _ in range(STEPS):
        vector.step(np.zeros(COUNT, np.int64))


def test_an_observation_of_another_shape_is_refused_as_gymnasium_does() -> None:
    for vector in vectors(lambda x: x[:1] if x[0] > 1 else x, False):
        with pytest.raises(ValueError, match="shape"):
            play(vector)
