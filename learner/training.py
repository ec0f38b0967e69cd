"""Trains a run's network and keeps its progress, goal, records and checkpoints. Does not use Redis.

The learner's loop feeds it with rollouts from Redis, `ops/serial.py` with rollouts of its own process. Both
callers decide the order of the steps: train, record, judge, save.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dppo_redis.errors import CheckpointError
from dppo_redis.protocol.config import CheckpointConfig, RunConfig
from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.protocol.reports import Evaluation, UpdateRecord
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.spaces.episode_metrics import to_episodes
from dppo_redis.spaces.metric_names import MAX_NAMES
from learner.checkpoint import Checkpoints, LearnerSnapshot, is_milestone
from learner.clock import RecentRate, TrainingClock, WaitMeter
from learner.goal import Finished, Goal, judge_goal
from learner.health_log import HealthLog, RunWarnings
from learner.malloc import naming_memory_settings
from learner.metrics import MetricsFiles, make_record
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate, UpdateReport
from learner.progress import Progress

_LAST_PAUSES_S = (0.5, 1.0, 1.5)  # between the tries of a last save: a disk may be full for a moment
_log = logging.getLogger("dppo")
SAVING_SHARE = 0.1  # largest share of a training's time that checkpoints may take, except in lock-step mode
_QUICK_S = 0.1  # saves up to this long are made at each milestone, and with interval 0 after each update


@dataclass(frozen=True)
class Trained:
    """The results of one update that are known before its weights are published."""

    report: UpdateReport
    staleness: Sequence[int]  # updates, of each rollout
    steps: int  # valid rows
    waited_s: float  # wait for the rollouts
    began: float  # monotonic


class Saving:
    """Decides when checkpoints and milestones are due, writes them, and remembers the last results."""

    def __init__(
        self, checkpoints: Checkpoints | None, knobs: CheckpointConfig, lock_step: LockStep | None
    ) -> None:
        """Save into `checkpoints`; None: save nothing."""
        self._checkpoints = checkpoints
        self._knobs = knobs
        self._lock_step = lock_step
        self._saved_at = time.monotonic()  # when the last one ended
        self._took_s = 0.0  # duration of the last one
        self._passed_milestone = False  # in the last update
        self._milestone_owed = False
        self.update = -1  # of the last checkpoint
        self.time = 0.0  # of the last checkpoint, seconds since 1970
        self.failures = 0
        self.error = ""  # why the last one failed; empty if it succeeded

    @property
    def last_good(self) -> str:
        """The checkpoint with which a resumed run would begin, as text."""
        return f"that of update {self.update}" if self.update >= 0 else "an earlier start's, if there is one"

    def note_update(self, steps_before: int, steps: int) -> None:
        """Note an update from `steps_before` to `steps` trained steps."""
        self._passed_milestone = is_milestone(steps_before, steps, self._knobs.milestone_steps)
        self._milestone_owed |= self._passed_milestone

    def is_due(self, update: int) -> bool:
        """Whether a checkpoint is due: by time, or in lock-step mode by the update.

        By time, saving takes at most SAVING_SHARE of the training, and milestones wait, too. In lock-step
        mode a resumed run must repeat the run exactly, so the start of each segment is saved.
        """
        if self._checkpoints is None:
            return False
        if self._lock_step is not None:
            return self._lock_step.starts_segment(update) or self._passed_milestone
        if self._took_s <= _QUICK_S and (self._milestone_owed or not self._knobs.interval_s):
            return True
        since_s = time.monotonic() - self._saved_at
        if since_s < self._pause_s:
            return False
        return since_s >= self._knobs.interval_s or self._milestone_owed

    @property
    def _pause_s(self) -> float:
        """Least time between the end of the last save and the begin of the next."""
        return self._took_s * (1 / SAVING_SHARE - 1)

    @property
    def slow_warning(self) -> str:
        """A warning if checkpoints take too long for their interval; else empty."""
        pause_s = self._pause_s
        if self._lock_step is not None or self._took_s <= _QUICK_S or pause_s <= self._knobs.interval_s:
            return ""
        asked, took, share = self._knobs.interval_s, self._took_s, SAVING_SHARE
        return (
            f"saving a checkpoint took {took:.1f} s, and may take {share:.0%} of the time: the next comes "
            f"{pause_s:.{1 if pause_s < 10 else 0}f} s later, not the {asked:g} s that were asked for (use a "
            "faster disk, or a longer --checkpoint.interval-s)"
        )

    def save(self, ppo: PpoUpdate, snapshot: LearnerSnapshot, confirm: Callable[[], None]) -> None:
        """Write a checkpoint, and the milestone owed.

        Raises:
            CheckpointError: the disk refuses; an owed milestone stays owed.
        """
        if self._checkpoints is None:
            return
        began = time.monotonic()
        try:
            self._checkpoints.save(ppo, snapshot, confirm, milestone=self._milestone_owed)
        except CheckpointError as error:
            self.failures += 1
            self.error = str(error)
            raise
        finally:
            self._saved_at = time.monotonic()
            self._took_s = self._saved_at - began
        self._milestone_owed = False
        self.error = ""
        self.update, self.time = snapshot.progress.update, round(time.time(), 1)


class Training:
    """The training of one network: its updates, counters, records, goal, warnings and checkpoints."""

    def __init__(
        self,
        config: RunConfig,
        ppo: PpoUpdate,
        progress: Progress,
        lock_step: LockStep | None,  # None: asynchronous
        metrics: MetricsFiles,
        checkpoints: Checkpoints | None,  # None: none are kept
    ) -> None:
        self.config = config
        self.ppo = ppo
        self.progress = progress
        self.metrics = metrics
        self.saving = Saving(checkpoints, config.checkpoint, lock_step)
        self.clock = TrainingClock(progress.train_s)
        self.goal = Goal(config.total_steps, config.target_return, config.target_on)
        self.evaluation: Evaluation | None = None  # the newest complete one
        self.finished: Finished | None = None
        self.wait_share = 0.0  # share of waiting over about 20 updates; the keeper paces the fleet by it
        self.waits = WaitMeter()
        self.rate = RecentRate()
        self.warnings = RunWarnings()
        self.first_update_time = 0.0  # seconds since 1970, of the first update of this process
        self._health = HealthLog(ppo.spec, self.warnings)

    def begin(self, ago_s: float = 0.0) -> None:
        """Start the clock, once: the sampling of the first rollout began `ago_s` seconds ago."""
        if not self.clock.has_begun:
            self.rate.add(self.clock.read_s(), self.progress.trained_steps)
            self.clock.begin(ago_s)

    def train(self, rollouts: Sequence[Rollout], staleness: Sequence[int], waited_s: float) -> Trained:
        """Make one update; `staleness` is that of each rollout in updates, `waited_s` the wait for them."""
        began, steps_before = time.monotonic(), self.progress.trained_steps
        with naming_memory_settings(self.config.ppo):
            batch = stack(rollouts, staleness)
            report = self.ppo.update(batch, steps_before / self.config.total_steps)
        metrics = [of for one in rollouts for of in to_episodes(one.metrics, len(one.episode_returns))]
        self.progress.add_update(batch.steps, staleness, batch.episode_returns.tolist(), metrics)
        if self.progress.metrics.left_out:
            self.warnings.add("metrics_names", f"the environment reports more than {MAX_NAMES} numbers")
        self._health.consider(report, self.progress.update)
        self.saving.note_update(steps_before, self.progress.trained_steps)
        self.advance_clock()
        self.rate.add(self.progress.train_s, self.progress.trained_steps)
        self.first_update_time = self.first_update_time or time.time()
        return Trained(report, staleness, batch.steps, waited_s, began)

    @property
    def alarm(self) -> str:
        """The reason if the training cannot learn now; else empty."""
        return self._health.alarm

    def advance_clock(self) -> None:
        """Bring the time in the progress up to date."""
        self.progress.train_s = self.clock.read_s()

    def record(self, trained: Trained, *, settled_steps: int, version: int) -> UpdateRecord:
        """Write the record of the last update.

        Args:
            settled_steps: valid steps of all settled rollouts, including those of the update.
            version: weights version of the update.
        """
        staleness, evaluation = trained.staleness, self.evaluation
        update_s = time.monotonic() - trained.began
        total_s = trained.waited_s + update_s
        self.wait_share += 0.05 * (trained.waited_s / total_s - self.wait_share) if total_s else 0.0
        record = make_record(
            trained.report,
            update=self.progress.update,
            trained_steps=self.progress.trained_steps,
            settled_steps=settled_steps,
            train_s=round(self.progress.train_s, 3),
            return_mean=self.progress.return_mean,
            episodes=self.progress.episodes,
            evaluation_return=evaluation.return_mean if evaluation else None,
            evaluation_steps=evaluation.settled_steps if evaluation else None,
            staleness_mean=sum(staleness) / len(staleness),
            staleness_max=max(staleness),
            version=version,
            wait_s=trained.waited_s,
            update_s=update_s,
            metrics=self.progress.metrics.means,
        )
        self.metrics.write(record)
        if self.metrics.failure:
            self.warnings.add("metrics", self.metrics.failure)
        return record

    def judge(self, settled_steps: int) -> None:
        """Decide whether the goal is reached; `settled_steps` as in `record`."""
        evaluation = self.evaluation if self.evaluation is not None and self.evaluation.complete else None
        self.finished = judge_goal(
            self.goal,
            self.progress,
            settled_steps,
            evaluation.return_mean if evaluation else None,
            evaluation.settled_steps if evaluation else None,
        )

    def is_due_to_save(self) -> bool:
        """Whether a checkpoint is due after the last update, or before the first."""
        return self.saving.is_due(self.progress.update)

    def save(self, snapshot: LearnerSnapshot, confirm: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint, and the milestone owed.

        `confirm` is called before the file gets its name; it raises if this process no longer leads.

        Raises:
            CheckpointError: the disk refuses; the failure is counted, and an owed milestone stays owed.
        """
        try:
            self.saving.save(self.ppo, snapshot, confirm)
        except CheckpointError as error:
            self.warnings.add("save", f"{error}; the last good checkpoint is {self.saving.last_good}")
            raise
        self.warnings.withdraw("save")
        if self.saving.slow_warning:
            self.warnings.add("slow_saves", self.saving.slow_warning)

    def save_last(self, write: Callable[[], None]) -> bool:
        """Save the end of the run by calling `write`, up to four times; returns whether it succeeded.

        `write` raises CheckpointError if the disk refuses.
        """
        for pause_s in (*_LAST_PAUSES_S, None):
            try:
                write()
            except CheckpointError as error:
                if pause_s is None:
                    _log.error(
                        "%s; this was the last try: --resume will begin at %s", error, self.saving.last_good
                    )
                    return False
                _log.error("%s; the run has ended, trying to save again in %g s", error, pause_s)
                time.sleep(pause_s)
            else:
                break
        return True
