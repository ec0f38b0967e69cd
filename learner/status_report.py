"""What a learner reports of itself, as far as its training and its intake know it. The keeper writes it."""

from dppo_redis.protocol.reports import LearnerStatus
from learner.training import Training


def status_of(training: Training, alarm: str, dropped_by_actor: str) -> LearnerStatus:
    """The report of this moment; `alarm`, which goes before the training's, and drops are the intake's."""
    config, progress, saving = training.config, training.progress, training.saving
    return LearnerStatus(
        state=_state(training),
        alarm=alarm or training.alarm,
        warnings=training.warnings.texts,
        dropped_by_actor=dropped_by_actor,
        update=progress.update,
        trained_steps=progress.trained_steps,
        budget_steps=config.env_steps,
        target_return=config.target_return,
        train_s=progress.train_s,
        steps_per_s=progress.steps_per_s(),
        return_mean=progress.return_mean,
        episodes=progress.episodes,
        staleness_mean=progress.staleness_mean,
        staleness_max=progress.staleness_max,
        staleness_limit=config.staleness_limit,
        learner_wait_share=training.wait_share,
        checkpoint_update=saving.update,
        checkpoint_time=saving.time,
        save_failures=saving.failures,
        device=str(training.ppo.device),
    )


def _state(training: Training) -> str:
    if training.finished is not None:
        return "finished"
    if training.clock.is_paused:
        return "paused"
    return "training" if training.clock.has_begun else "waiting"
