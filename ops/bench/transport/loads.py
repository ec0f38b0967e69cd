"""The rollouts that the benchmark carries: vectors of CartPole's size, and pictures."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.rollout import Rollout, allocate
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.gymnasium_spaces import describe_spaces

ENVIRONMENTS = 8


@dataclass(frozen=True)
class Load:
    """Rollouts of one kind and size, and how many of them make a batch and a sample."""

    name: str
    observation: gymnasium.Space[Any]
    rollout_steps: int
    batch: int  # rollouts
    rollouts: int  # of a sample; a multiple of the batch and of the producers

    def planned(self) -> RunPlan:
        """The plan of a run with such rollouts."""
        values: dict[str, Any] = {
            "env_id": f"Transport{self.name.title()}-v0",  # never made
            "actors": 2,
            "envs_per_actor": ENVIRONMENTS,
            "rollout_steps": self.rollout_steps,
            "total_steps": 10**9,
        }
        spaces = describe_spaces(self.observation, gymnasium.spaces.Discrete(2))
        return plan(RunConfig.model_validate(values), spaces, serial=False)


LOADS = {
    load.name: load
    for load in (
        Load("vectors", gymnasium.spaces.Box(-1, 1, (4,), np.float32), 293, 25, 6000),  # 82 KB
        Load("pictures", gymnasium.spaces.Box(0, 255, (96, 96, 3), np.uint8), 128, 2, 40),  # 28 MB
    )
}


def make_rollout(spec: Spec) -> Rollout:
    """A valid rollout of random numbers in which no episode ends."""
    rng = np.random.default_rng(0)
    rollout = allocate(spec, ENVIRONMENTS)
    for name in vars(rollout).keys() - {"metrics"}:
        getattr(rollout, name)[...] = 0
    for rows in (rollout.observations, rollout.last_observations):
        is_picture = rows.dtype == np.uint8
        random = rng.integers(0, 256, rows.shape, np.uint8) if is_picture else rng.standard_normal(rows.shape)
        rows[...] = random
    rollout.actions[...] = rng.integers(0, 2, rollout.actions.shape)
    rollout.log_probs[...] = np.log(0.5)
    rollout.rewards[...] = 1
    rollout.valid[...] = True
    return rollout


def frames_per_step(payload: bytes, spec: Spec) -> float:
    """Size of a payload in observations, by its steps."""
    return len(payload) / (spec.observation.row_bytes * spec.rollout_steps * ENVIRONMENTS)
