"""PPO in one process, without Redis: collect, train, evaluate, save.

It is the baseline for distributed runs, and the simplest place to debug an environment. It has the same
collectors, update and files as a fleet. The command is `commands/serial.py`.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dppo_redis.errors import CheckpointError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.protocol.run_plan import RunPlan
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.shutdown import StopRequest
from learner.build import build_ppo, make_checkpoints
from learner.checkpoint import LearnerSnapshot
from learner.metrics import MetricsFiles
from learner.training import Training
from learner.warm_start import resume_or_begin
from ops.screens.tables import describe_metrics
from ops.serial_evaluation import SerialEvaluations
from ops.serial_sampling import PolicyHistory, Sampling, make_sampling

_LINE_PERIOD_S = 2.0
_log = logging.getLogger("dppo")


@dataclass
class Serial:
    """One serial run: samples a batch and makes an update, in turn."""

    config: RunConfig
    description: RunDescription
    sampling: Sampling
    training: Training
    run_dir: Path
    console: Console
    stop: StopRequest
    age: int = 0  # how many updates old the behaviour policy is

    def __post_init__(self) -> None:
        self.policies = PolicyHistory(self.age)
        self.evaluations = SerialEvaluations(
            self.description,
            self.config.evaluation,
            self.run_dir,
            self.sampling.calls,
            self.training.warnings,
            lambda line: self.console.print(line, highlight=False, soft_wrap=True),
        )
        self.next_line = 0.0
        self.ended_at = 0.0  # by the monotonic clock, when training ended

    def run(self) -> None:
        """Train until the goal is reached or a stop is requested."""
        training, progress = self.training, self.training.progress
        training.begin()
        training.judge(progress.trained_steps)  # a resumed run may have reached its goal
        self._save_when_due()
        while training.finished is None and not self.stop.requested:
            policy = self.policies.behaviour(self._policy())
            training.waits.begin()
            try:
                rollouts = self.sampling.collect(policy, self.stop)
            except StoppedError:
                break
            staleness = [progress.update - policy.weights.update] * len(rollouts)
            trained = training.train(rollouts, staleness, waited_s=training.waits.end())
            if self.evaluations.is_due():
                training.evaluation = self.evaluations.play(self._policy(), self.stop)
            training.record(trained, settled_steps=progress.trained_steps, version=progress.update)
            self._show()
            training.judge(progress.trained_steps)
            self._save_when_due()
        self.ended_at = time.monotonic()
        last = training.evaluation
        if not self.stop.requested and (last is None or last.update != progress.update):
            training.evaluation = self.evaluations.play(self._policy(), self.stop, last=True)
            training.judge(progress.trained_steps)

    def _policy(self) -> ActingPolicy:
        """The present policy."""
        steps, update = self.training.progress.trained_steps, self.training.progress.update
        arrays = self.training.ppo.acting_arrays()
        weights = Weights(1, update + 1, update, steps, steps, self.description.digest, arrays)
        return ActingPolicy(weights, self.description.spec)

    def _save_when_due(self) -> None:
        if self.training.is_due_to_save():
            try:
                self.save()
            except CheckpointError as error:
                _log.error("%s; training continues, and the save is tried again", error)

    def save(self) -> None:
        """Write a checkpoint, as the learner of a fleet would.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        progress = self.training.progress
        snapshot = LearnerSnapshot(
            progress=progress,
            epoch=1,
            version=progress.update + 1,
            lineage=Lineage(),
            last_sequence_numbers=LastSequenceNumbers(),
            ledger_audit=LedgerAudit(Ledger({"steps:trained": progress.trained_steps})),
            actor_boots={},
        )
        self.training.save(snapshot)

    def _show(self) -> None:
        """Print one line about the training, every two seconds."""
        if time.monotonic() < self.next_line:
            return
        self.next_line = time.monotonic() + _LINE_PERIOD_S
        progress, evaluation = self.training.progress, self.training.evaluation
        metrics = ", " + describe_metrics(progress.metrics.means, 4) if progress.metrics.names else ""
        line = (
            f"{progress.trained_steps}/{self.config.total_steps} steps, {progress.steps_per_s():.0f}/s, "
            f"update {progress.update}, return {progress.return_mean or 0:.1f}{metrics}, "
            f"evaluation {f'{evaluation.return_mean:.1f}' if evaluation else '-'}"
        )
        self.console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Flush the metrics and free the environments."""
        self.training.metrics.close()
        self.sampling.close()
        self.evaluations.close()

    def summary(self) -> RunSummary:
        """The summary of the run, without the duration of the command."""
        training = self.training
        progress, evaluation, finished = training.progress, training.evaluation, training.finished
        return RunSummary(
            reason=finished.reason if finished and not self.stop.requested else "stopped",
            settled_steps=progress.trained_steps,
            trained_steps=progress.trained_steps,
            wall_s=0.0,
            train_s=progress.train_s,
            steps_per_s=progress.steps_per_s(),
            updates=progress.update,
            return_mean=evaluation.return_mean if evaluation else None,
            return_episodes=evaluation.episodes if evaluation else 0,
            evaluation=self.evaluations.last,
            evaluations=self.evaluations.complete,
            target_step=finished.target_step if finished else None,
            train_return_mean=progress.return_mean,
            metrics=progress.metrics.means,
            refused=self.sampling.failure_count.refused,
            learner_wait_share=training.waits.share(),
            warnings=training.warnings.texts,
            run_dir=str(self.run_dir),
        )


def make_serial(
    planned: RunPlan,
    run_dir: Path,
    console: Console,
    stop: StopRequest,
    age: int = 0,
    run: str | None = None,
) -> Serial:
    """Build a serial run with its files in `run_dir`. Without a name `run` it saves no checkpoints.

    The run continues from the newest checkpoint in `run_dir`, if there is one.
    """
    config, description = planned.config, planned.description
    ppo = build_ppo(config, description, planned.derived.update_epochs)
    checkpoints = None if run is None else make_checkpoints(config, description, run, run_dir)
    progress = resume_or_begin(config, ppo, checkpoints)
    lock_step = description.join.lock_step
    sampling = make_sampling(config, description, progress.update)
    metrics = MetricsFiles(run_dir, progress.update)
    training = Training(config, ppo, progress, lock_step, metrics, checkpoints)
    return Serial(config, description, sampling, training, run_dir, console, stop, age)
