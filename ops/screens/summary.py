"""Builds the summary of a run from its last status and its last counters in Redis."""

import logging
from dataclasses import replace
from pathlib import Path

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.reports import Control, LedgerSummary, RunSummary, StalenessSummary
from dppo_redis.store.client import TransientError, translated
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_status import RunStatus
from dppo_redis.store.run_store import RUN, RunStore
from ops.screens.evaluation_summary import (
    describe_all,
    describe_evaluation_problem,
    describe_missing,
    last_evaluation,
)
from ops.screens.watch import Watch

_log = logging.getLogger("dppo")


def summarise(config: RunConfig, watch: Watch, run_dir: Path, *, failed: bool) -> RunSummary:
    """Build the summary; reads the last counters from Redis, so call it before the server stops."""
    empty = RunStatus(watch.store.keys.run, {}, Control(RUN, "", None), Ledger(), None, {}, None)
    status = watch.status or empty
    summary = _from_status(status, config, run_dir)
    if watch.status is not None:
        try:
            with translated():
                summary = _with_counters(summary, watch.store)
                summary = replace(summary, actors=Registry(watch.client, watch.store.keys).joined())
        except (TransientError, ConfigurationError) as error:
            _log.warning("the last counts of the ledger could not be read: %s", error)
        summary = _with_last_evaluation(summary, config, status)
        summary = _with_evaluation_warnings(summary, config, status)
    summary = replace(summary, warnings=(*summary.warnings, *watch.failed_services.warnings))
    return replace(summary, reason="failed") if failed else summary


def _from_status(status: RunStatus, config: RunConfig, run_dir: Path) -> RunSummary:
    learner, keeper, evaluation = status.learner, status.keeper, status.evaluation
    return RunSummary(
        reason=status.control.reason or "stopped",
        settled_steps=status.ledger.settled_steps,
        trained_steps=learner.trained_steps,
        wall_s=0.0,  # set at the end of the command
        train_s=learner.train_s,
        steps_per_s=learner.steps_per_s,
        updates=learner.update,
        version=keeper.version,
        return_mean=evaluation.return_mean if evaluation else None,
        return_episodes=evaluation.episodes if evaluation else 0,
        evaluation=last_evaluation(status.evaluator, status.evaluation),
        evaluations=status.evaluator.evaluations,
        target_step=status.control.target_step,
        train_return_mean=learner.return_mean,
        metrics=learner.metrics,
        staleness=StalenessSummary(learner.staleness_mean, learner.staleness_max, config.staleness_limit),
        ledger=status.ledger_summary,
        actors=len(status.actors),
        actor_wait_share=keeper.actor_wait_share,
        learner_wait_share=learner.learner_wait_share,
        warnings=learner.warnings,
        run_dir=str(run_dir),
    )


def _with_counters(summary: RunSummary, store: RunStore) -> RunSummary:
    counters = store.counters()
    ledger = Ledger(counters.ledger)
    ledger_summary = LedgerSummary.of(
        ledger, ledger.entries_before + counters.entries_added, counters.backlog
    )
    return replace(summary, ledger=ledger_summary, settled_steps=ledger.settled_steps)


def _with_last_evaluation(summary: RunSummary, config: RunConfig, status: RunStatus) -> RunSummary:
    """Set the reason `target` if the budget ran out and the last evaluation met the target afterwards."""
    evaluation, target = status.evaluation, config.target_return
    if evaluation is None or target is None or config.target_on != "eval":
        return summary
    if summary.reason == "total_steps" and evaluation.settled_steps and evaluation.return_mean >= target:
        return replace(summary, reason="target", target_step=evaluation.settled_steps)
    return summary


def _with_evaluation_warnings(summary: RunSummary, config: RunConfig, status: RunStatus) -> RunSummary:
    """Add problems of evaluations as warnings. A stopped run needs no evaluation of its last weights."""
    if not config.evaluation.enabled:
        return summary
    newest, control = status.evaluation, status.control
    texts = describe_all(status.evaluator, newest)
    is_decided = (
        newest is not None and newest.settled_steps == control.target_step
    )  # this evaluation ended the run
    is_over = control.reason in ("total_steps", "target")
    if (
        not describe_evaluation_problem(status.evaluator, newest)
        and not is_decided
        and is_over
        and config.evaluation.end_wait_s
    ):
        text = describe_missing(status.evaluator, newest, status.learner.update)
        texts = (text, *texts) if text else texts
        if status.evaluator.playing:  # the evaluator did not report the cut evaluation
            summary = replace(summary, evaluation=None)
    return replace(summary, warnings=(*summary.warnings, *texts))
