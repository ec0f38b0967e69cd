"""The learner's loop: batch in, update, publish, settle. Each rule has its own module.

Publishing comes before settling, so that an actor that waits for room finds the new weights.
"""

import logging
import time
from dataclasses import asdict, dataclass

from dppo_redis.config import RunConfig
from dppo_redis.errors import CheckpointError
from dppo_redis.history import NO_HISTORY, History
from dppo_redis.ledger import Outcome, Settlement
from dppo_redis.lock_step import LockStep
from dppo_redis.logs import Rarely
from dppo_redis.redis_client import Patience, TransientError, translated
from dppo_redis.run_store import PAUSE, RUN, STOP, Evaluation, RunStore
from dppo_redis.shutdown import StopRequest
from learner.asking import Asking
from learner.batch import stack
from learner.cautions import Cautions
from learner.checkpoint import Checkpoints, Snapshot, is_milestone
from learner.goal import Finished, Goal, judge_goal
from learner.intake import Accepted, Intake
from learner.leadership.keeper import Fields, Keeper
from learner.leadership.leadership import Leadership
from learner.metrics import MetricsFiles, make_record
from learner.ppo_update import PpoUpdate, UpdateReport
from learner.progress import Progress

_log = logging.getLogger("dppo")


@dataclass
class Learner:
    """Everything the loop uses; built in `__main__.py`."""

    config: RunConfig
    ppo: PpoUpdate
    progress: Progress
    lock_step: LockStep | None  # None: asynchronous
    leadership: Leadership
    intake: Intake
    store: RunStore
    checkpoints: Checkpoints
    metrics: MetricsFiles
    patience: Patience
    stop: StopRequest
    history: History = NO_HISTORY

    def __post_init__(self) -> None:
        self.goal = Goal(self.config.env_steps, self.config.target_return, self.config.target_on)
        self.finished: Finished | None = None
        self.published_update = -1
        self.asking = Asking(self.lock_step, self._signs_of_loss) if self.lock_step else None
        self.evaluation: Evaluation | None = None
        self.train_began: float | None = None  # monotonic; when the first rollout came
        self.train_s_before = self.progress.train_s
        self.saved_at = time.monotonic()
        self.checkpoint_update = -1
        self.checkpoint_time = 0.0  # seconds since 1970
        self.saved_epoch = 0
        self.save_failures = 0
        self.milestone_owed = False
        self.waited_s = 0.0
        self.wait_share = 0.0
        self.paused_at: float | None = None  # monotonic
        self.unknown_states: set[str] = set()  # complained of
        self.rarely = Rarely()
        self.cautions = Cautions()

    def run(self, keeper: Keeper) -> None:
        """Train until the goal is reached, a stop is asked for, or another learner leads."""
        self.publish()
        self.save()
        self.patience.call("start the keeper", keeper.start)
        while self.finished is None and not self.stop.requested:
            keeper.check()
            if not self._may_train():
                continue
            batch = self._poll()
            if batch is not None:
                self._train(batch)
            elif self.asking and self.asking.is_due(self.progress.update, self.intake.slots):
                self.publish()
            if self.leadership.fence.epoch != self.saved_epoch:
                self.save()  # or a successor on an empty server would take the same epoch again
            self._judge()
        if self.finished is not None:
            self._finish(self.finished)

    def _may_train(self) -> bool:
        """Follow the operator's wish; looks at the newest evaluation in passing."""
        control = self.patience.call("read control", self.store.control)
        self.evaluation = self.patience.call("read the evaluation", self.store.evaluation)
        if control.state == STOP:
            self.stop.request()
            return False
        if control.state == PAUSE:
            if self.paused_at is None:
                self._advance_clock()
                self.paused_at = time.monotonic()
            self.stop.sleep(0.2)
            return False
        self._go_on()
        if control.state != RUN and control.state not in self.unknown_states:
            self.unknown_states.add(control.state)
            _log.error("control asks for the unknown state %r: going on as with %r", control.state[:40], RUN)
        return True

    def _go_on(self) -> None:
        """The time of a pause is not training time."""
        if self.paused_at is not None and self.train_began is not None:
            self.train_began += time.monotonic() - self.paused_at
        self.paused_at = None

    def _poll(self) -> list[Accepted] | None:
        started = time.monotonic()
        try:
            with translated():
                batch = self.intake.poll(self.progress.update, lambda: self.leadership.lease.lineage)
        except TransientError as error:
            if self.rarely.due():
                _log.warning("waiting for Redis: %s", error)
            self.stop.sleep(0.2)
            return None
        if self.train_began is not None:
            self.waited_s += time.monotonic() - started
        elif batch is not None or self.intake.gathered:
            self.train_began = time.monotonic()
        return batch

    def _train(self, accepted: list[Accepted]) -> None:
        started = time.monotonic()
        steps_before = self.progress.trained_steps
        staleness = [self.progress.update - a.header.update for a in accepted]
        batch = stack([a.rollout for a in accepted], staleness)
        report = self.ppo.update(batch, self.progress.trained_steps / self.config.env_steps)
        self._remember(accepted)
        self.progress.add_update(batch.steps, staleness, batch.episode_returns.tolist())
        env_steps = self.leadership.bookkeeper.env_steps + batch.steps
        if self.progress.update % self.config.publish_every == 0:
            self.publish(env_steps)
        self.leadership.bookkeeper.settle(
            [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in accepted]
        )
        self.intake.settled(accepted)
        self.cautions.consider(report)
        self._record(report, staleness, time.monotonic() - started)
        self._save_when_due(steps_before)

    def _remember(self, accepted: list[Accepted]) -> None:
        """Into the history: what was trained on, before its outcome is recorded."""
        if self.history.is_on:
            headers = [(a.entry_id, a.header) for a in accepted]
            rollouts = [(i, h.boot, h.seq, h.epoch, h.version, h.update) for i, h in headers]
            self.history.write("trained", at=self.progress.update, rollouts=rollouts)

    def publish(self, env_steps: int | None = None) -> None:
        """Publish the present weights."""
        self.leadership.publisher.publish(
            self.ppo.acting_arrays(),
            self.progress.update,
            self.progress.trained_steps,
            self.leadership.bookkeeper.env_steps if env_steps is None else env_steps,
        )
        self.published_update = self.progress.update
        if self.asking is not None:
            self.asking.published()

    def _signs_of_loss(self) -> int:
        """How often something has shown that rollouts may be lost."""
        bookkeeper = self.leadership.bookkeeper
        return bookkeeper.books.ledger.of(Outcome.LOST) + bookkeeper.streams_made + self.intake.damaged

    def _save_when_due(self, steps_before: int) -> None:
        """By the clock; in lock-step mode, where a run must be able to go on exactly, by the update."""
        progress, checkpoint = self.progress, self.config.checkpoint
        milestone = is_milestone(steps_before, progress.trained_steps, checkpoint.milestone_steps)
        self.milestone_owed |= milestone
        if self.lock_step is not None:
            due = self.lock_step.starts_segment(progress.update)
        else:
            due = time.monotonic() - self.saved_at >= checkpoint.interval_s
        if due or milestone:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, and the milestone owed; a full disk is reported and tried again later."""
        self._advance_clock()
        snapshot = Snapshot(
            progress=self.progress,
            epoch=self.leadership.fence.epoch,
            version=self.leadership.publisher.version,
            lineage=self.leadership.lease.lineage,
            marks=self.intake.marks_of_settled(),
            books=self.leadership.bookkeeper.books,
            actor_boots=self.leadership.publisher.boots,
        )
        self.saved_at, self.saved_epoch = time.monotonic(), snapshot.epoch
        try:
            confirm = self.leadership.lease.confirm
            self.checkpoints.save(self.ppo, snapshot, confirm, milestone=self.milestone_owed)
            self.milestone_owed = False
            self.checkpoint_update, self.checkpoint_time = self.progress.update, round(time.time(), 1)
            self.history.write("saved", update=self.progress.update, epoch=snapshot.epoch)
        except CheckpointError as error:
            self.save_failures += 1
            _log.error("%s; training goes on, saving is tried again", error)

    def _advance_clock(self) -> None:
        if self.train_began is not None and self.paused_at is None:
            self.progress.train_s = self.train_s_before + time.monotonic() - self.train_began

    def _record(self, report: UpdateReport, staleness: list[int], update_s: float) -> None:
        self._advance_clock()
        total_s = self.waited_s + update_s
        self.wait_share += 0.05 * (self.waited_s / total_s - self.wait_share) if total_s else 0.0
        evaluation = self.evaluation
        record = make_record(
            report,
            update=self.progress.update,
            trained_steps=self.progress.trained_steps,
            env_steps=self.leadership.bookkeeper.env_steps,
            train_s=round(self.progress.train_s, 3),
            return_mean=self.progress.return_mean,
            episodes=self.progress.episodes,
            evaluation_return=evaluation.return_mean if evaluation else None,
            evaluation_steps=evaluation.env_steps if evaluation else None,
            staleness_mean=sum(staleness) / len(staleness),
            staleness_max=max(staleness),
            version=self.leadership.publisher.version,
            wait_s=self.waited_s,
            update_s=update_s,
        )
        self.waited_s = 0.0
        self.metrics.write(record)
        fields = {name: "" if value is None else value for name, value in asdict(record).items()}
        self.patience.call("record metrics", lambda: self.store.append_metrics({"kind": "update", **fields}))

    def _judge(self) -> None:
        evaluation = self.evaluation
        self.finished = judge_goal(
            self.goal,
            self.progress,
            self.leadership.bookkeeper.env_steps,
            evaluation.return_mean if evaluation else None,
            evaluation.env_steps if evaluation else None,
        )

    def _finish(self, finished: Finished) -> None:
        _log.info("done (%s) at update %d", finished.reason, self.progress.update)
        self.progress.target_step = finished.target_step
        if self.published_update != self.progress.update:
            self.publish()
        self.leadership.publisher.end_run(finished.reason, finished.target_step)

    def hand_back(self, keeper: Keeper) -> None:
        """Write the last status and hand the lease back, if Redis is there."""
        keeper.close()
        try:
            with translated():
                keeper.tick()
                self.leadership.lease.release()
        except TransientError as error:
            _log.warning("left without handing the lease back: %s", error)

    def _state(self) -> str:
        if self.finished:
            return "finished"
        if self.paused_at is not None:
            return "paused"
        return "training" if self.train_began else "waiting"

    def status(self) -> Fields:
        """The status hash, as far as the loop knows it; the keeper calls this from its thread."""
        progress = self.progress
        return_mean = progress.return_mean
        target = self.config.target_return
        return {
            "state": self._state(),
            "alarm": self.intake.alarm,
            "dropped_by_actor": self.intake.dropped_by_actor,
            "update": progress.update,
            "trained_steps": progress.trained_steps,
            "budget_steps": self.config.env_steps,
            "target_return": "" if target is None else target,
            "train_s": round(progress.train_s, 3),
            "steps_per_s": round(progress.steps_per_s(), 1),
            "return_mean": "" if return_mean is None else round(return_mean, 3),
            "episodes": progress.episodes,
            "staleness_mean": round(progress.staleness_mean, 4),
            "staleness_max": progress.staleness_max,
            "staleness_limit": self.config.staleness_limit,
            "learner_wait_share": round(self.wait_share, 3),
            "checkpoint_update": self.checkpoint_update,
            "checkpoint_time": self.checkpoint_time,
            "save_failures": self.save_failures,
            "device": str(self.ppo.device),
        }
