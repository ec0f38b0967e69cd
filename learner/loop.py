"""The learner's loop: reads batches from Redis and trains on them. Each rule has its own module.

The loop handles each batch in this order: train, write the event, publish, settle, record, judge, save.
It publishes before it settles, so that an actor that waits for room in the backlog finds the new weights.
"""

import logging
from dataclasses import dataclass, replace

from dppo_redis.errors import CheckpointError
from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.protocol.report_fields import to_fields
from dppo_redis.protocol.reports import LearnerStatus, UpdateRecord
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import RetryLoop, TransientError, translated
from dppo_redis.store.error_causes import Recurrence
from dppo_redis.store.run_store import PAUSE, RUN, STOP, RunStore
from learner.checkpoint import LearnerSnapshot
from learner.goal import Finished
from learner.intake.intake import AcceptedRollout, Intake
from learner.intake.resend_requests import ResendRequests
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import Leadership
from learner.status_report import status_of, with_present_rates
from learner.training import Training

_log = logging.getLogger("dppo")


@dataclass
class Learner:
    """The loop and its parts; built in `__main__.py`."""

    training: Training
    lock_step: LockStep | None  # None: asynchronous
    leadership: Leadership
    intake: Intake
    store: RunStore
    retry: RetryLoop
    stop: StopRequest
    event_log: EventLog = NO_EVENT_LOG

    def __post_init__(self) -> None:
        self.resend_requests = ResendRequests(self.lock_step, self._signs_of_loss) if self.lock_step else None
        self.published_update = -1
        self.saved_epoch = 0
        self.unknown_states: set[str] = set()  # those already logged
        self.recurrence = Recurrence(self._warn_about_redis)
        for recurrence in (self.retry.recurrence, self.leadership.lease.recurrence):
            recurrence.report = self._warn_about_redis
        self.report = self._report()  # replaced as a whole at every change: the keeper's thread reads it

    def run(self, keeper: Keeper) -> None:
        """Train until the goal is reached, a stop is requested, or another learner leads."""
        self.publish()
        self.save()
        self.retry.call("start the keeper", keeper.start)
        while self.training.finished is None and not self.stop.requested:
            keeper.check()
            if not self._may_train():
                continue
            self.training.judge(self.leadership.bookkeeper.settled_steps)
            if self.training.finished is not None:
                break
            batch = self._poll(keeper)
            self.report = self._report()
            if batch is not None:
                self._train(batch)
            elif self.resend_requests and self.resend_requests.is_due(
                self.training.progress.update, self.intake.slots
            ):
                self.publish()
            self.training.judge(self.leadership.bookkeeper.settled_steps)
            if batch is not None and self.training.is_due_to_save():
                self.save()
            if self.leadership.fence.epoch != self.saved_epoch:
                self.save()  # else a later learner on an empty server would take the same epoch
        if self.training.finished is not None:
            self._finish(self.training.finished)

    def _may_train(self) -> bool:
        """Obey the operator's control state, and read the newest evaluation; returns whether to train."""
        control = self.retry.call("read control", self.store.control)
        self.training.evaluation = self.retry.call("read the evaluation", self.store.evaluation)
        if control.state == STOP:
            self.stop.request()
            return False
        if control.state == PAUSE:
            if not self.training.clock.is_paused:
                self.training.waits.end()
                self.training.clock.pause()
                self.training.advance_clock()
            self.report = self._report()
            self.stop.sleep(0.2)
            return False
        self.training.clock.resume()
        if control.state != RUN and control.state not in self.unknown_states:
            self.unknown_states.add(control.state)
            _log.error("control asks for the unknown state %r: treating it as %r", control.state[:40], RUN)
        return True

    def _poll(self, keeper: Keeper) -> list[AcceptedRollout] | None:
        self.training.waits.begin()
        try:
            with translated():
                batch = self.intake.poll(self.training.progress.update, lambda: self.leadership.lease.lineage)
            self.recurrence.over()
        except TransientError as error:
            self.recurrence.log("read rollouts", error)
            self.stop.sleep(0.2)
            return None
        if not self.training.clock.has_begun and (batch is not None or self.intake.gathered):
            self.training.begin(self._sampled_for_s(keeper))
        return batch

    def _sampled_for_s(self, keeper: Keeper) -> float:
        """Seconds that the first rollout took to sample, at most this learner's present wait."""
        try:
            with translated():
                sampled_s = keeper.longest_rollout_s()
        except TransientError:
            return 0.0
        return min(sampled_s, self.training.waits.lasting_s)

    def _train(self, accepted: list[AcceptedRollout]) -> None:
        update = self.training.progress.update
        staleness = [update - a.header.update for a in accepted]
        waited_s = self.training.waits.end()
        trained = self.training.train([a.rollout for a in accepted], staleness, waited_s)
        self._log_trained(accepted, update)
        settled_steps = self.leadership.bookkeeper.settled_steps + trained.steps
        if self.training.progress.update % self.training.config.publish_every == 0:
            self.publish(settled_steps)
        self.leadership.bookkeeper.settle(
            [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in accepted]
        )
        self.intake.settled(accepted)
        record = self.training.record(
            trained,
            settled_steps=self.leadership.bookkeeper.settled_steps,
            version=self.leadership.publisher.version,
        )
        self.report = self._report()
        self._append(record)

    def _log_trained(self, accepted: list[AcceptedRollout], update: int) -> None:
        """Write to the event log which rollouts were trained on, before their outcome is recorded."""
        if self.event_log.is_on:
            headers = [(a.entry_id, a.header) for a in accepted]
            rollouts = [(i, h.boot, h.seq, h.epoch, h.version, h.update) for i, h in headers]
            self.event_log.write("trained", at=update, rollouts=rollouts)

    def _append(self, record: UpdateRecord) -> None:
        fields = to_fields(record)
        self.retry.call("record metrics", lambda: self.store.append_metrics({"kind": "update", **fields}))

    def publish(self, settled_steps: int | None = None) -> None:
        """Publish the present weights."""
        progress = self.training.progress
        self.leadership.publisher.publish(
            self.training.ppo.acting_arrays(),
            progress.update,
            progress.trained_steps,
            self.leadership.bookkeeper.settled_steps if settled_steps is None else settled_steps,
        )
        self.published_update = progress.update
        if self.resend_requests is not None:
            self.resend_requests.published()

    def _signs_of_loss(self) -> int:
        """The number of events so far that show that rollouts may be lost."""
        bookkeeper = self.leadership.bookkeeper
        return bookkeeper.ledger_audit.ledger.of(Outcome.LOST) + bookkeeper.streams_made + self.intake.damaged

    def save(self) -> None:
        """Write a checkpoint, and the milestone owed; a full disk is reported and tried again later."""
        try:
            self._write_checkpoint()
        except CheckpointError as error:
            _log.error("%s; training continues, and the save is tried again", error)

    def save_last(self) -> bool:
        """Write the last checkpoint, with a few tries; returns whether it succeeded."""
        return self.training.save_last(self._write_checkpoint)

    def _write_checkpoint(self) -> None:
        """Write a checkpoint, and the milestone owed; the report shows the result.

        Raises:
            CheckpointError: the disk refuses.
        """
        self.training.advance_clock()
        snapshot = LearnerSnapshot(
            progress=self.training.progress,
            epoch=self.leadership.fence.epoch,
            version=self.leadership.publisher.version,
            lineage=self.leadership.lease.lineage,
            last_sequence_numbers=self.intake.settled_sequence_numbers(),
            ledger_audit=self.leadership.bookkeeper.ledger_audit,
            actor_boots=self.leadership.publisher.boots,
        )
        self.saved_epoch = snapshot.epoch
        try:
            self.training.save(snapshot, self.leadership.lease.confirm)
            self.event_log.write("saved", update=snapshot.progress.update, epoch=snapshot.epoch)
        finally:
            self.report = self._report()

    def _finish(self, finished: Finished) -> None:
        progress = self.training.progress
        _log.info("done (%s) at update %d", finished.reason, progress.update)
        progress.target_step = finished.target_step
        self.report = self._report()
        if self.published_update != progress.update:
            self.publish()
        self.leadership.publisher.end_run(finished.reason, finished.target_step)

    def _report(self) -> LearnerStatus:
        """The learner's report, with an alarm if the loop waits for Redis."""
        waiting = (self.recurrence, self.retry.recurrence, self.leadership.lease.recurrence)
        waits_for = next((recurrence.text for recurrence in waiting if recurrence.text), "")
        report = status_of(self.training, self.intake)
        return replace(report, alarm=waits_for or report.alarm)

    def _warn_about_redis(self, text: str) -> None:
        """Add a warning about a repeated error of Redis. The keeper may still be able to write it."""
        self.training.warnings.add("redis", text)
        self.report = self._report()

    def current_report(self) -> LearnerStatus:
        """The last report with present rates, even while the loop waits or trains; for the keeper."""
        return self.report if self.training.finished else with_present_rates(self.report, self.training)

    def hand_back(self, keeper: Keeper) -> None:
        """Write the last status and release the lease, if Redis answers."""
        keeper.close()
        try:
            with translated():
                keeper.tick()
                self.leadership.lease.release()
        except TransientError as error:
            _log.warning("ended without returning the lease: %s", error)
