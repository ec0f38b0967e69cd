"""The evaluator: greedy episodes with published weights, at low priority. `python -m workers.evaluate`.

Plays in environments of its own. Writes results to Redis and keeps the best policy in the run directory.
"""

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dppo_redis.artefacts.best_policy import BestPolicy
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, ExitStatus, StoppedError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.report_fields import to_fields
from dppo_redis.protocol.reports import BestEvaluation
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.deaths import read_deaths
from dppo_redis.service.event_log import NO_HISTORY, History, arrays_digest
from dppo_redis.service.logs import configure
from dppo_redis.service.shutdown import StopRequest, run_service
from dppo_redis.store.client import Patience, connect
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.weight_store import WeightStore
from workers.episodes import evaluate
from workers.join import wait_for_description
from workers.loop import check_run
from workers.watchdog import CallClock, Watchdog

_POLL_S = 0.05
_NICENESS = 10
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class EvaluatorOptions:
    """Evaluate the newest weights of a run, again and again."""

    run: str
    """Name of the run"""
    redis: str | None = None
    """Redis URL; default: the environment variable DPPO_REDIS_URL"""
    run_dir: Path | None = None
    """Where the best policy is kept; default: nowhere"""
    history: Path | None = None
    """File to which every event is appended, for checking afterwards; default: none"""


@dataclass
class Evaluator:
    """Everything the loop uses."""

    description: RunDescription
    store: RunStore
    weights: WeightStore
    patience: Patience
    stop: StopRequest
    best: BestPolicy
    history: History = NO_HISTORY
    calls: CallClock = field(default_factory=CallClock)

    def run(self) -> None:
        """Evaluate until the run ends, its last weights included, or a stop is asked for."""
        join = self.description.join
        seen = None
        while not self.stop.requested:
            ending = self.patience.call("read control", self.store.control).state == STOP
            newest = self.patience.call("look at the weights", self.weights.peek)
            if newest is None or newest == seen or self._is_decided():
                if ending:
                    return
                self.stop.sleep(_POLL_S)
                continue
            began = time.monotonic()
            cpu_before_s = time.process_time()
            self._evaluate()
            seen = newest
            # What training could have used is computing time; an environment that sleeps costs none.
            share_s = (time.process_time() - cpu_before_s) / join.evaluation_max_share
            if not ending:
                self._rest_until(began + max(join.evaluation_interval_s, share_s))

    def _is_decided(self) -> bool:
        """Whether the run ended because the last evaluation met the target: then that one stands."""
        control = self.patience.call("read control", self.store.control)
        last = self.patience.call("read the evaluation", self.store.evaluation)
        return control.state == STOP and last is not None and last.env_steps == control.target_step

    def _rest_until(self, deadline: float) -> None:
        """Wait for the next turn, but wake when the run ends."""
        while (left := deadline - time.monotonic()) > 0 and not self.stop.requested:
            self.stop.sleep(min(left, 4 * _POLL_S))
            if self.patience.call("read control", self.store.control).state == STOP:
                return

    def _evaluate(self) -> None:
        """Evaluate the newest weights; write the result, and keep them if they are the best so far."""
        try:
            weights = self.patience.call("fetch weights", self.weights.fetch)
            if weights is None:
                return
            policy = ActingPolicy(weights, self.description.spec)
            if self.history.is_on:
                digest = arrays_digest(weights.arrays)
                self.history.write("read", epoch=weights.epoch, version=weights.version, digest=digest)
            result = evaluate(policy, self.description, self.stop, calls=self.calls)
        except (WireError, EnvironmentBrokenError) as error:
            if isinstance(error, WireError):
                check_run(error, self.description, self.store, self.patience)
            _log.error("no evaluation: %s", error)
            self.stop.sleep(1.0)
            return
        if self._is_decided():
            return
        is_best = self.best.consider(weights, result)
        best_return = result.return_mean if self.best.return_mean is None else self.best.return_mean
        fields = to_fields(result, BestEvaluation(best_return, weights.version if is_best else None))
        self.patience.call("write the evaluation", lambda: self.store.write_evaluation(fields))


def _serve(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    options = parse_arguments(EvaluatorOptions, argv, "dppo-redis evaluator")
    os.nice(_NICENESS)
    deaths = read_deaths()
    deaths.check()
    stop.sleep(deaths.pause_s)
    if options.run_dir is not None and not options.run_dir.is_dir():
        raise ConfigurationError(f"{options.run_dir} is not a directory")
    client = connect(find_url(options.redis, Role.EVALUATOR), f"dppo-evaluator-{options.run}")
    keys = RunKeys(options.run)
    history = History(options.history, "evaluator")
    patience = Patience(stop)
    store = RunStore(client, keys)
    try:
        description = wait_for_description(store, patience, stop)
        if description is not None:
            weights = WeightStore(client, keys)
            best = BestPolicy(options.run_dir)
            evaluator = Evaluator(description, store, weights, patience, stop, best, history)
            with Watchdog(evaluator.calls, description.join.env_timeout_s, stop):
                evaluator.run()
    except StoppedError as error:
        _log.info("%s", error)
    return ExitStatus.DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("evaluator")
    return run_service(partial(_serve, argv))


if __name__ == "__main__":
    sys.exit(main())
