"""`dppo-redis status`: shows the present status of a run."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from dppo_redis.command_line.run_name import one_run_name
from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import INTERACTIVE_PATIENCE_S, RetryLoop, connect
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_status import RunStatus, read_status
from dppo_redis.store.run_store import missing_run, only_run
from ops.screens.evaluation_summary import describe_all, last_evaluation
from ops.screens.tables import make_console
from ops.screens.view import render


@dataclass(frozen=True)
class StatusOptions:
    """Show the present status of a run."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Name of the run; default: the only run on the server"""
    run: str | None = None
    """Name of the run, the same as RUN"""
    redis: str | None = None
    """Redis URL; default: the environment variable DPPO_REDIS_URL"""
    json: bool = False
    """Print the status as one JSON object"""


def status_json(status: RunStatus) -> dict[str, Any]:
    """The status as a JSON object."""
    evaluation = last_evaluation(status.evaluator, status.evaluation)
    return {
        "run": status.run,
        "state": status.control.state,
        "reason": status.control.reason or None,
        "learner": {name: _number_or_text(value) for name, value in sorted(status.fields.items())},
        "missing": list(status.keeper.missing),
        "metrics": status.learner.metrics,
        "learner_wait_share": status.learner.learner_wait_share,
        "age_s": status.age_s if status.age_s is None else round(status.age_s, 1),
        "ledger": to_json(status.ledger_summary),
        "drops": dict(status.ledger.reasons()),
        "warnings": [*status.learner.warnings, *describe_all(status.evaluator, status.evaluation)],
        "evaluations": status.evaluator.evaluations,
        "evaluation": None if evaluation is None else to_json(evaluation),
        "evaluator": to_json(status.evaluator),
        "actors": {
            str(slot): {name: _number_or_text(value) for name, value in report.items()}
            for slot, report in status.actor_fields.items()
        },
    }


def _number_or_text(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text  # JSON has no NaN
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Raises:
        ConfigurationError: this Redis has no run of that name.
    """
    options = parse_arguments(StatusOptions, argv, "dppo-redis status")
    client = connect(find_url(options.redis, Role.MONITOR), "dppo-status")
    retry = RetryLoop(StopRequest(), deadline_s=INTERACTIVE_PATIENCE_S)
    run = one_run_name(options.name, options.run) or retry.call("list the runs", lambda: only_run(client))
    status = retry.call("read the status", lambda: read_status(client, RunKeys(run)))
    if not status.fields and not status.actor_fields:
        raise retry.call("list the runs", lambda: missing_run(client, run))
    if options.json:
        print(json.dumps(status_json(status)))
    else:
        make_console().print(render(status))
    return ExitStatus.DONE
