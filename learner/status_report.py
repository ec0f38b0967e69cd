"""How the loop's report follows from what it did. Pure; the keeper takes the report and writes it."""

from dataclasses import replace

from dppo_redis.config import RunConfig
from dppo_redis.report_fields import from_fields
from dppo_redis.reports import LearnerStatus
from learner.progress import Progress


def first_report(config: RunConfig, progress: Progress, device: str) -> LearnerStatus:
    """What holds before the first rollout of this learner; `progress` is that of its checkpoint."""
    nothing = from_fields(LearnerStatus, {})
    fixed = replace(
        nothing,
        state="waiting",
        budget_steps=config.env_steps,
        target_return=config.target_return,
        staleness_limit=config.staleness_limit,
        checkpoint_update=-1,
        device=device,
    )
    return with_progress(fixed, progress)


def with_progress(report: LearnerStatus, progress: Progress) -> LearnerStatus:
    """After an update, and wherever the clock was read."""
    return replace(
        report,
        update=progress.update,
        trained_steps=progress.trained_steps,
        train_s=progress.train_s,
        steps_per_s=progress.steps_per_s(),
        return_mean=progress.return_mean,
        episodes=progress.episodes,
        staleness_mean=progress.staleness_mean,
        staleness_max=progress.staleness_max,
    )
