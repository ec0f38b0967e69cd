"""Records of whole rollouts equal what `Environments.step` says of one step after another."""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from dppo_redis.protocol.rollout import allocate
from dppo_redis.spaces.episode_metrics import NOTHING
from tests.factories import make_spec
from workers.envs import Environments, VectorStep
from workers.sampling.step_records import StepRecords

COUNT, STEPS = 5, 40
MODES = list(AutoresetMode)


class Scripted(VectorEnv[Any, Any, Any]):
    """Ends episodes at random, also in dummy steps, where it ought not to, and reports metrics of some ends.

    It hands out its own arrays and overwrites them in the next step.
    """

    def __init__(self, mode: AutoresetMode, seed: int) -> None:
        self.num_envs = COUNT
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, COUNT)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, COUNT)
        self.mode, self.random = mode, np.random.default_rng(seed)
        self.observations = np.zeros((COUNT, 2), np.float32)
        self.flags = np.zeros((2, COUNT), np.bool_)
        self.rewards = np.zeros(COUNT)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        del seed
        mask = np.ones(COUNT, np.bool_) if options is None else options["reset_mask"]
        self.observations[mask] = self.random.normal(size=(mask.sum(), 2))
        return self.observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        del actions
        self.observations[:] = self.random.normal(size=(COUNT, 2))
        self.rewards[:] = self.random.normal(size=COUNT)
        self.flags[:] = self.random.random((2, COUNT)) < 0.3
        infos: dict[str, Any] = {}
        reported = {"is_success": self.random.random(COUNT), "_is_success": self.random.random(COUNT) < 0.5}
        if self.random.random() < 0.5:
            infos = {"final_info": reported} if self.mode is AutoresetMode.SAME_STEP else reported
        if self.mode is AutoresetMode.SAME_STEP and self.flags.any():
            infos["final_obs"] = np.array([*self.random.normal(size=(COUNT, 2)), None], object)[:-1]
        return self.observations, self.rewards, *self.flags, infos


def make(mode: AutoresetMode, seed: int) -> Environments:
    return Environments(Scripted(mode, seed), [0])


def stepped(environments: Environments, steps: int) -> list[VectorStep]:
    """Copies of steps."""
    found = []
    for _ in range(steps):
        step = environments.step(np.zeros(COUNT, np.int64))
        found.append(copy.deepcopy(step))
    return found


def of_ends(steps: Sequence[VectorStep]) -> list[Any]:
    return [row for step in steps if step.final_observations is not None for row in step.final_observations]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("asks_for_begins", [False, True], ids=["once", "at every step"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_records_of_two_rollouts_equal_single_steps(
    mode: AutoresetMode, asks_for_begins: bool, seed: int
) -> None:
    expected, environments = make(mode, seed), make(mode, seed)
    np.testing.assert_array_equal(expected.reset(), newest := environments.reset())
    buffers = allocate(make_spec(observation_size=2, rollout_steps=STEPS), COUNT)
    records = StepRecords(environments, buffers)
    for steps in (STEPS, STEPS // 2):
        records.begin()
        begins = []
        for t in range(steps):
            buffers.observations[t] = newest
            newest = records.step(t, np.zeros(COUNT, np.int64))
            if asks_for_begins:
                begins.append(records.begins(t))
        finals, metrics = records.finish(steps, newest)
        single = stepped(expected, steps)
        for name in ("rewards", "terminated", "truncated", "valid"):
            found = getattr(buffers, name)[:steps]
            np.testing.assert_array_equal(found, [getattr(one, name) for one in single], err_msg=name)
        np.testing.assert_array_equal(
            buffers.observations[1:steps], [one.observations for one in single[:-1]]
        )
        np.testing.assert_array_equal(finals, of_ends(single))
        flat = [one for step in single for one in step.metrics]
        assert metrics == flat
        assert any(one != NOTHING for one in flat)
        if asks_for_begins:
            np.testing.assert_array_equal(begins, [one.begins for one in single])
