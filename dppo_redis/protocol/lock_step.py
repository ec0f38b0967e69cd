"""The plan of lock-step mode, whose runs have staleness 0 and are reproducible bit for bit. Pure.

Each slot of the planned fleet gives the same number of rollouts to each update, sampled with the weights of
that update. Updates come in segments. At the start of a segment the learner writes a checkpoint and actors
rebuild all environments, with seeds that depend on slot and update alone. So a run that is resumed there
continues as it would have without the break.
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
        """Whether a segment starts with the weights of `update`."""
        return update % self.segment_updates == 0

    def must_rebuild(self, update: int, previous: int | None) -> bool:
        """Whether environments are rebuilt before they are sampled with the weights of `update`.

        `previous` is the update for which they were last sampled, None if there are no environments. If it
        is not the update before (the learner went back, or went on without this slot), their state is wrong.
        """
        return previous is None or update != previous + 1 or self.starts_segment(update)


def lock_step_of(config: RunConfig, rollout_steps: int) -> LockStep | None:
    """The plan for rollouts of `rollout_steps`, in whole rounds as near to the batch as possible.

    None if the run is not in lock-step mode.
    """
    if not config.lock_step:
        return None
    round_rows = config.actors * config.envs_per_actor * rollout_steps
    rollouts = max(1, math.ceil(config.ppo.batch_steps / round_rows - 0.5))
    return LockStep(config.actors, rollouts, config.segment_updates)


def seed_boot(update: int) -> int:
    """The number that replaces the boot in the seeds of environments that are built for `update`.

    A first start is boot 1 in every mode, so that a lock-step run begins as the serial baseline does.
    """
    return 1 + update
