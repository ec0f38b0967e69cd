"""The evaluator: greedy episodes with published weights, at low priority. `python -m workers.evaluate`.

Plays in environments of its own, one episode in each, so that short episodes count no more than
long ones. Writes results to Redis and keeps the best policy in the run directory.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from dppo_redis.acting import ActingPolicy
from dppo_redis.arguments import parse_arguments
from dppo_redis.credentials import Role, find_url
from dppo_redis.environments import Vectorization, make_vector
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, ExitStatus, StoppedError, WireError
from dppo_redis.files import write_aside
from dppo_redis.history import NO_HISTORY, History, arrays_digest
from dppo_redis.keys import RunKeys
from dppo_redis.logs import configure
from dppo_redis.redis_client import Patience, connect
from dppo_redis.report_fields import from_json, to_fields, to_json
from dppo_redis.reports import BestEvaluation, Evaluation
from dppo_redis.run_files import write_best
from dppo_redis.run_store import STOP, RunStore
from dppo_redis.shutdown import StopRequest, run_service
from dppo_redis.spec import RunDescription
from dppo_redis.weight_store import WeightStore
from dppo_redis.weights import Weights
from workers.__main__ import wait_for_description
from workers.collect import Eyes
from workers.envs import Environments
from workers.loop import check_run
from workers.seeding import evaluation_seeds
from workers.watchdog import Watchdog

BEST_EVALUATION = "best_evaluation.json"
LONGEST_EPISODE = 100_000  # steps; nobody would see the result of a longer one
_MOST_AT_ONCE = 64
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


def evaluate(
    policy: ActingPolicy,
    description: RunDescription,
    stop: StopRequest,
    sampling: np.random.Generator | None = None,
    seeds: Sequence[int] | None = None,
) -> Evaluation:
    """Play whole episodes, one per environment; greedy ones, unless `sampling` draws the actions.

    Without `seeds` [episodes] every version plays other episodes of the run's own.

    Raises:
        StoppedError: a stop was requested meanwhile.
        EnvironmentBrokenError: the environment raised, or an episode does not end.
    """
    join, weights = description.join, policy.weights
    if seeds is None:
        seeds = evaluation_seeds(join.seed, weights.version, join.evaluation_episodes)
    returns: list[float] = []
    lengths: list[int] = []
    for first in range(0, len(seeds), _MOST_AT_ONCE):
        some = list(seeds[first : first + _MOST_AT_ONCE])
        vector = _make_environments(description, len(some))
        environments = Environments(vector, some)
        try:
            played = _play_one_each(policy, environments, stop, sampling)
        finally:
            environments.close()
        returns += played[0].tolist()
        lengths += played[1].tolist()
    if not np.isfinite(returns).all():
        raise EnvironmentBrokenError("an episode's return is not a finite number")
    return Evaluation(
        version=weights.version,
        update=weights.update,
        trained_steps=weights.trained_steps,
        env_steps=weights.env_steps,
        return_mean=float(np.mean(returns)),
        return_std=float(np.std(returns)),
        length_mean=float(np.mean(lengths)),
        episodes=len(returns),
    )


def _make_environments(description: RunDescription, count: int) -> VectorEnv[Any, Any, Any]:
    """In this process, whatever the actors do: its computing time is what is rationed."""
    spec, wanted = description.spec, description.join.vectorization
    vectorization: Vectorization = "sync" if wanted == "async" else wanted
    try:
        return make_vector(spec.environment, count, vectorization, masked=spec.observation.masked)
    except ConfigurationError as error:  # it could be made when it was looked at: this may pass
        raise EnvironmentBrokenError(str(error)) from error


def _play_one_each(
    policy: ActingPolicy,
    environments: Environments,
    stop: StopRequest,
    sampling: np.random.Generator | None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Returns [N] and lengths [N] of the first episode of each environment."""
    eyes = Eyes(policy.spec, environments.reset())
    running = np.ones(environments.count, dtype=np.bool_)
    returns = np.zeros(environments.count)
    lengths = np.zeros(environments.count, dtype=np.int64)
    while running.any():
        if stop.requested:
            raise StoppedError("stopped during an evaluation")
        if lengths.max() >= LONGEST_EPISODE:
            raise EnvironmentBrokenError(
                f"an episode has not ended after {LONGEST_EPISODE:,} steps: an environment that may go on "
                "for ever needs a limit, for example --wrappers 'TimeLimit(max_episode_steps=1000)'"
            )
        outputs, memory = policy.step(eyes.rows, eyes.memory)
        if sampling is None:
            actions = policy.greedy(outputs)
        else:
            actions = policy.sample(outputs, policy.noise(sampling, 1, environments.count)[0])
        step = environments.step(policy.action.to_environment(actions))
        eyes.see(step, memory)
        returns[running] += step.rewards[running]
        lengths[running] += 1
        running &= ~(step.terminated | step.truncated)
    return returns, lengths


def keep_best(run_dir: Path, weights: Weights, result: Evaluation) -> None:
    """Keep a policy and its evaluation; each is written aside, then renamed."""
    write_best(run_dir, weights)
    write_aside(run_dir / BEST_EVALUATION, json.dumps(to_json(result), indent=2).encode())


@dataclass
class Evaluator:
    """Everything the loop uses."""

    description: RunDescription
    store: RunStore
    weights: WeightStore
    patience: Patience
    stop: StopRequest
    run_dir: Path | None
    history: History = NO_HISTORY

    def run(self) -> None:
        """Evaluate until the run ends, its last weights included, or a stop is asked for."""
        join = self.description.join
        best = self._read_best()
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
            best = self._evaluate(best)
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

    def _evaluate(self, best: float | None) -> float | None:
        """Evaluate the newest weights; returns the best mean return so far."""
        try:
            weights = self.patience.call("fetch weights", self.weights.fetch)
            if weights is None:
                return best
            policy = ActingPolicy(weights, self.description.spec)
            if self.history.is_on:
                digest = arrays_digest(weights.arrays)
                self.history.write("read", epoch=weights.epoch, version=weights.version, digest=digest)
            result = evaluate(policy, self.description, self.stop)
        except (WireError, EnvironmentBrokenError) as error:
            if isinstance(error, WireError):
                check_run(error, self.description, self.store, self.patience)
            _log.error("no evaluation: %s", error)
            self.stop.sleep(1.0)
            return best
        if self._is_decided():
            return best
        is_best = best is None or result.return_mean > best
        if best is None or is_best:
            best = result.return_mean
            self._keep(weights, result)
        fields = to_fields(result, BestEvaluation(best, weights.version if is_best else None))
        self.patience.call("write the evaluation", lambda: self.store.write_evaluation(fields))
        return best

    def _read_best(self) -> float | None:
        if self.run_dir is None or not (self.run_dir / BEST_EVALUATION).exists():
            return None
        try:
            return from_json(Evaluation, (self.run_dir / BEST_EVALUATION).read_text()).return_mean
        except (ValueError, OSError) as error:
            _log.warning("the best evaluation so far is unreadable, beginning anew: %s", error)
            return None

    def _keep(self, weights: Weights, result: Evaluation) -> None:
        if self.run_dir is None:
            return
        try:
            keep_best(self.run_dir, weights, result)
        except OSError as error:
            _log.error("cannot keep the best policy: %s", error)


def _serve(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    options = parse_arguments(EvaluatorOptions, argv, "dppo-redis evaluator")
    os.nice(_NICENESS)
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
            evaluator = Evaluator(description, store, weights, patience, stop, options.run_dir, history)
            with Watchdog(description.join.env_timeout_s, stop):
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
