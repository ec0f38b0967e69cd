"""Builds the learner's report from its training and its intake. The keeper writes it to Redis."""

from dataclasses import replace

from dppo_redis.protocol.reports import LearnerStatus
from learner.intake.intake import Intake
from learner.training import Training


def with_present_rates(report: LearnerStatus, training: Training) -> LearnerStatus:
    """The report with the present share of waiting and steps per second. Any thread may call it."""
    return replace(
        report,
        learner_wait_share=training.waits.share(),
        steps_per_s_recent=training.rate.per_s(training.clock.read_s()),
    )


def status_of(training: Training, intake: Intake) -> LearnerStatus:
    """The learner's report now. An alarm of the intake has priority over one of the training."""
    config, progress, saving = training.config, training.progress, training.saving
    return LearnerStatus(
        state=_state(training),
        alarm=intake.alarm or training.alarm,
        warnings=training.warnings.texts,
        dropped_by_actor=intake.dropped_by_actor,
        update=progress.update,
        trained_steps=progress.trained_steps,
        budget_steps=config.total_steps,
        target_return=config.target_return,
        train_s=progress.train_s,
        steps_per_s=progress.steps_per_s(),
        steps_per_s_recent=training.rate.per_s(training.clock.read_s()),
        return_mean=progress.return_mean,
        episodes=progress.episodes,
        staleness_mean=progress.staleness_mean,
        staleness_recent=intake.drops.recent_staleness.mean,
        staleness_max=progress.staleness_max,
        stale_share=intake.drops.recent_staleness.share,
        staleness_limit=config.staleness_limit,
        learner_wait_share=training.waits.share(),
        checkpoint_update=saving.update,
        checkpoint_time=saving.time,
        save_failures=saving.failures,
        save_error=saving.error,
        device=str(training.ppo.device),
        first_update_time=training.first_update_time,
        metrics=progress.metrics.means,
    )


def _state(training: Training) -> str:
    if training.finished is not None:
        return "finished"
    if training.clock.is_paused:
        return "paused"
    return "training" if training.clock.has_begun else "waiting"
