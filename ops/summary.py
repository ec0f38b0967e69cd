"""What a run came to: the object that --json prints and summary.json keeps."""

import logging
import time
from pathlib import Path
from typing import Any

from dppo_redis.config import RunConfig
from dppo_redis.errors import ConfigurationError
from dppo_redis.ledger import Ledger
from dppo_redis.redis_client import TransientError, translated
from dppo_redis.registry import Registry
from dppo_redis.run_store import RunStore
from ops import cli
from ops.status import RunStatus, ledger_json
from ops.watch import Watch

_log = logging.getLogger("dppo")


def summarise(config: RunConfig, watch: Watch, run_dir: Path, *, failed: bool) -> dict[str, Any]:
    """Put the summary together; read from Redis while it is still there."""
    summary = _empty(config, run_dir)
    if watch.status is not None:
        _fill_from_status(summary, watch.status)
        try:
            with translated():
                _fill_from_counters(summary, watch.store)
                summary["actors"] = Registry(watch.client, watch.store.keys).joined()
        except (TransientError, ConfigurationError) as error:
            _log.warning("the last books are not known: %s", error)
        _count_last_evaluation(summary, config, watch.status)
    if failed:
        summary["reason"] = "failed"
    summary["wall_s"] = round(time.monotonic() - cli.STARTED, 3)
    return summary


def _empty(config: RunConfig, run_dir: Path) -> dict[str, Any]:
    return {
        "reason": "stopped",
        "env_steps": 0,
        "trained_steps": 0,
        "wall_s": 0.0,
        "train_s": 0.0,
        "steps_per_s": 0.0,
        "updates": 0,
        "version": 0,
        "return_mean": None,
        "return_episodes": 0,
        "target_step": None,
        "train_return_mean": None,
        "staleness": {"mean": 0.0, "max": 0, "limit": config.staleness_limit},
        "ledger": ledger_json(Ledger(), 0, 0, 0),
        "actors": 0,
        "actor_wait_share": 0.0,
        "run_dir": str(run_dir),
    }


def _count_last_evaluation(summary: dict[str, Any], config: RunConfig, status: RunStatus) -> None:
    """The budget ran out, but the last evaluation, of the final weights, met the target."""
    evaluation, target = status.evaluation, config.target_return
    if evaluation is None or target is None or config.target_on != "eval":
        return
    if summary["reason"] == "env_steps" and evaluation.env_steps and evaluation.return_mean >= target:
        summary["reason"], summary["target_step"] = "target", evaluation.env_steps


def _fill_from_status(summary: dict[str, Any], status: RunStatus) -> None:
    return_mean = status.fields.get("return_mean")
    evaluation = status.evaluation
    summary.update(
        reason=status.control.reason or "stopped",
        env_steps=status.ledger.env_steps,
        trained_steps=status.integer("trained_steps"),
        train_s=status.number("train_s"),
        steps_per_s=status.number("steps_per_s"),
        updates=status.integer("update"),
        version=status.integer("version"),
        return_mean=evaluation.return_mean if evaluation else None,
        return_episodes=evaluation.episodes if evaluation else 0,
        target_step=status.control.target_step,
        train_return_mean=float(return_mean) if return_mean else None,
        actor_wait_share=status.number("actor_wait_share"),
    )
    summary["ledger"] = {name: status.integer(name) for name in summary["ledger"]}
    summary["actors"] = len(status.actors)
    summary["staleness"].update(mean=status.number("staleness_mean"), max=status.integer("staleness_max"))


def _fill_from_counters(summary: dict[str, Any], store: RunStore) -> None:
    counters = store.counters()
    ledger = Ledger(counters.ledger)
    added = ledger.entries_before + counters.entries_added
    imbalance = added - ledger.settled - counters.backlog
    summary["ledger"] = ledger_json(ledger, added, counters.backlog, imbalance)
    summary["env_steps"] = ledger.env_steps
