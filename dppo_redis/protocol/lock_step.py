"""Lock-step mode: staleness 0 and bit for bit reproducible. What actors and learner agree on. Pure.

Each slot of the planned fleet gives the same number of rollouts to each update, sampled with the
weights of that update. Updates come in segments: at the start of one a checkpoint is written and
all environments are built anew, with seeds that depend on slot and update alone. So a run that goes
on from there sees what it would have seen without a break.
"""

import math
from dataclasses import dataclass

from dppo_redis.protocol.config import RunConfig


@dataclass(frozen=True)
class LockStep:
    """The plan of a lock-step run."""

    actors: int  # slots 0 to actors - 1 take part, and no others
    rollouts: int  # of each slot in each update
    segment_updates: int

    @property
    def rollouts_per_update(self) -> int:
        return self.actors * self.rollouts

    def starts_segment(self, update: int) -> bool:
        """Whether the weights of `update` are those a segment starts with."""
        return update % self.segment_updates == 0

    def starts_anew(self, update: int, previous: int | None) -> bool:
        """Whether environments are built anew before they are sampled with the weights of `update`.

        `previous` is the update they were last sampled for, None where there are none. Out of turn
        (the learner went back, or went on without them) they would not be where they should be.
        """
        return previous is None or update != previous + 1 or self.starts_segment(update)


def lock_step_of(config: RunConfig, rollout_steps: int) -> LockStep | None:
    """The plan for rollouts of `rollout_steps`, as near to the batch as whole rounds come; None without."""
    if not config.lock_step:
        return None
    round_rows = config.actors * config.envs_per_actor * rollout_steps
    rollouts = max(1, math.ceil(config.ppo.batch_steps / round_rows - 0.5))
    return LockStep(config.actors, rollouts, config.segment_updates)


def seed_boot(update: int) -> int:
    """What stands for the boot number in the seeds of environments built for `update`.

    A first start is boot 1 in every mode, so that a lock-step run begins as the serial baseline does.
    """
    return 1 + update
