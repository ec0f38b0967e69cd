"""Checkpoints of a serial run: when the learner of a fleet would write them, and with what it would write."""

import logging
import time
from pathlib import Path

from dppo_redis.config import RunConfig
from dppo_redis.errors import CheckpointError
from dppo_redis.ledger import Books, Ledger
from dppo_redis.lineage import Lineage
from dppo_redis.run_files import CHECKPOINTS
from dppo_redis.sequence_numbers import Marks
from dppo_redis.spec import RunDescription
from learner.checkpoint import Checkpoints, Snapshot, is_milestone
from learner.ppo_update import PpoUpdate
from learner.progress import Progress

_log = logging.getLogger("dppo")


class Saving:
    """By the clock, in lock-step mode at the start of each segment; milestones; and at the end."""

    def __init__(self, run: str, run_dir: Path, config: RunConfig, description: RunDescription) -> None:
        self._plan = description.join.lock_step
        self._knobs = config.checkpoint
        segment = self._plan.segment_updates if self._plan else 1
        self._checkpoints = Checkpoints(
            run_dir / CHECKPOINTS, run, description.digest, self._knobs.keep, segment
        )
        self._saved_at = time.monotonic()
        self._milestone_owed = False

    def save_when_due(self, ppo: PpoUpdate, progress: Progress, steps_before: int) -> None:
        """After an update, before which `steps_before` steps had been trained; and before the first."""
        milestone = is_milestone(steps_before, progress.trained_steps, self._knobs.milestone_steps)
        self._milestone_owed |= milestone
        if self._plan is not None:
            due = self._plan.starts_segment(progress.update)
        else:
            due = time.monotonic() - self._saved_at >= self._knobs.interval_s
        if due or milestone:
            self.save(ppo, progress)

    def save(self, ppo: PpoUpdate, progress: Progress) -> None:
        """Leave what was learnt, and the milestone owed; a full disk is reported."""
        self._saved_at = time.monotonic()
        snapshot = Snapshot(
            progress=progress,
            epoch=1,
            version=progress.update + 1,
            lineage=Lineage(),
            marks=Marks(),
            books=Books(Ledger({"steps:trained": progress.trained_steps})),
            actor_boots={},
        )
        try:
            self._checkpoints.save(ppo, snapshot, milestone=self._milestone_owed)
            self._milestone_owed = False
        except CheckpointError as error:
            _log.error("%s", error)
