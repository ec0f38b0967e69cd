"""`dppo-redis status`: what a run is doing, from the same keys that redis-cli reads."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dppo_redis.arguments import parse_arguments
from dppo_redis.credentials import Role, find_url
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.keys import RunKeys
from dppo_redis.ledger import Ledger, Outcome
from dppo_redis.redis_client import INTERACTIVE_PATIENCE_S, Client, Patience, connect
from dppo_redis.registry import Registry, number
from dppo_redis.reports import Evaluation
from dppo_redis.run_store import Control, RunStore, only_run
from dppo_redis.shutdown import StopRequest


@dataclass(frozen=True)
class StatusOptions:
    """Show what a run is doing."""

    run: str | None = None
    """Name of the run; default: the only one on the server"""
    redis: str | None = None
    """Redis URL; default: the environment variable DPPO_REDIS_URL"""
    json: bool = False
    """Print one JSON object"""


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    run: str
    fields: Mapping[str, str]  # of the status hash
    control: Control
    ledger: Ledger
    evaluation: Evaluation | None
    actors: Mapping[int, Mapping[str, str]]  # living ones, by slot
    age_s: float | None  # of the status hash; None when there is none

    def number(self, name: str) -> float:
        """A numeric field of the status hash; 0 where it is missing or empty."""
        return number(self.fields.get(name))

    def integer(self, name: str) -> int:
        """The same, whole."""
        return int(self.number(name))

    def text(self, name: str, otherwise: str = "-") -> str:
        """A field of the status hash as text."""
        return self.fields.get(name) or otherwise


def read_status(client: Client, keys: RunKeys) -> RunStatus:
    """Read a run's status in a few round trips. Redis errors pass through."""
    store = RunStore(client, keys)
    fields = store.status()
    written = number(fields.get("time"))
    return RunStatus(
        run=keys.run,
        fields=fields,
        control=store.control(),
        ledger=Ledger(store.ledger()),
        evaluation=store.evaluation(),
        actors=Registry(client, keys).living(),
        age_s=max(0.0, time.time() - written) if written else None,
    )


def ledger_json(ledger: Ledger, entries_added: int, backlog: int, imbalance: int) -> dict[str, int]:
    """The books as scripts read them."""
    outcomes = {outcome.value: ledger.of(outcome) for outcome in Outcome}
    return {"entries_added": entries_added, **outcomes, "backlog": backlog, "imbalance": imbalance}


def status_json(status: RunStatus) -> dict[str, Any]:
    """One JSON object."""
    evaluation = status.evaluation
    return {
        "run": status.run,
        "state": status.control.state,
        "reason": status.control.reason or None,
        "learner": {name: _plain(value) for name, value in sorted(status.fields.items())},
        "age_s": status.age_s if status.age_s is None else round(status.age_s, 1),
        # Of the status hash: all counted at one moment, so that they add up.
        "ledger": {name: status.integer(name) for name in ledger_json(Ledger(), 0, 0, 0)},
        "drops": dict(status.ledger.reasons()),
        "evaluation": None if evaluation is None else vars(evaluation),
        "actors": {
            str(slot): {name: _plain(value) for name, value in report.items()}
            for slot, report in status.actors.items()
        },
    }


def _plain(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text  # JSON has no NaN
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parse_arguments(StatusOptions, argv, "dppo-redis status")
    client = connect(find_url(options.redis, Role.MONITOR), "dppo-status")
    patience = Patience(StopRequest(), deadline_s=INTERACTIVE_PATIENCE_S)
    run = options.run or patience.call("list the runs", lambda: only_run(client))
    status = patience.call("read the status", lambda: read_status(client, RunKeys(run)))
    if not status.fields and not status.actors:
        raise ConfigurationError(f"this Redis has no run {run}")
    if options.json:
        print(json.dumps(status_json(status)))
    else:
        from ops.tables import make_console
        from ops.view import render

        make_console().print(render(status))
    return ExitStatus.DONE
