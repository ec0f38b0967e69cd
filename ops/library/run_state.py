"""Builds the status of a run before its first report and after its end. Pure."""

from dataclasses import replace

from dppo_redis.protocol.ledger import Ledger, Outcome
from dppo_redis.protocol.report_fields import from_fields, names, to_fields
from dppo_redis.protocol.reports import (
    Control,
    Evaluation,
    KeeperStatus,
    LearnerStatus,
    LedgerSummary,
    RunSummary,
)
from dppo_redis.store.run_status import RunStatus
from dppo_redis.store.run_store import RUN, STOP

FINISHED = "finished"


def status_of_beginning(run: str, total_steps: int, target_return: float | None) -> RunStatus:
    """The status of a run whose learner has not reported yet."""
    learner = replace(from_fields(LearnerStatus, {}), budget_steps=total_steps, target_return=target_return)
    return RunStatus(run, _texts(learner), Control(RUN, "", None), Ledger(), None, {}, None)


def status_of_end(last: RunStatus, summary: RunSummary | None) -> RunStatus:
    """The status of an ended run: its last status, updated from its summary, if it wrote one."""
    control = Control(STOP, "failed", last.control.target_step)
    learner = replace(last.learner, state=FINISHED)
    ended = replace(last, control=control, actor_fields={}, age_s=None)
    if summary is None:
        return replace(ended, fields=_texts(learner, last.keeper))
    learner = replace(
        learner,
        update=summary.updates,
        trained_steps=summary.trained_steps,
        train_s=summary.train_s,
        steps_per_s=summary.steps_per_s,
        return_mean=summary.train_return_mean,
        learner_wait_share=summary.learner_wait_share,
        warnings=summary.warnings,
    )
    staleness = summary.staleness
    if staleness is not None:
        learner = replace(
            learner,
            staleness_mean=staleness.mean,
            staleness_max=staleness.max,
            staleness_limit=staleness.limit,
        )
    keeper = replace(
        last.keeper,
        settled_steps=summary.settled_steps,
        version=summary.version or last.keeper.version,
        actors=0,
    )
    if summary.ledger is not None:
        keeper = _with_ledger(keeper, summary.ledger)
    return replace(
        ended,
        fields=_texts(learner, keeper),
        control=Control(STOP, summary.reason, summary.target_step),
        ledger=Ledger(
            {**last.ledger.counts, **{outcome.value: getattr(keeper, outcome) for outcome in Outcome}}
        ),
        evaluation=summary.evaluation if _is_complete(summary.evaluation) else last.evaluation,
        evaluator=replace(last.evaluator, evaluations=summary.evaluations, playing=False),
    )


def _texts(*reports: LearnerStatus | KeeperStatus) -> dict[str, str]:
    return {name: str(value) for name, value in to_fields(*reports).items()}


def _is_complete(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and evaluation.complete


def _with_ledger(keeper: KeeperStatus, ledger_summary: LedgerSummary) -> KeeperStatus:
    counts = {name: getattr(ledger_summary, name) for name in names(LedgerSummary)}
    return replace(keeper, **counts)
