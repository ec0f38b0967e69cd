"""The evaluator plays greedy episodes with published weights, at low priority: `python -m workers.evaluate`.

It builds its own environments, writes its results to Redis and keeps the best policy in the run directory.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dppo_redis.artefacts.best_policy import BestPolicy
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, ExitStatus, StoppedError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.report_fields import to_fields, to_json
from dppo_redis.protocol.reports import BestEvaluation, Control, Evaluation, EvaluatorReport
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights, WeightsId
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.ending import closing_within
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog, arrays_digest
from dppo_redis.service.logs import configure
from dppo_redis.service.service_deaths import read_deaths, stopped_status
from dppo_redis.service.shutdown import StopRequest, run_service
from dppo_redis.store.client import RetryLoop, TransientError, connect, translated
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.weight_store import WeightStore
from workers.episodes import EpisodePlayer, EvaluationBudget
from workers.join import check_run, wait_for_description
from workers.watchdog import CallClock, Watchdog

_POLL_S = 0.05
_CHECK_PERIOD_S = 0.25  # between two checks of the run while episodes are played
_PROGRESS_S = 1.0
_LONGEST_PAUSE_S = 30.0  # after evaluations that failed
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
    """Directory in which the best policy is kept; default: it is not kept"""
    event_log: Path | None = None
    """File to which every event is appended, for checking afterwards; default: none"""


class _OutdatedError(Exception):
    """The run has ended with newer weights than the evaluator is evaluating."""


@dataclass
class _Playing:
    """The evaluation that is being played."""

    weights: WeightsId | None  # None: not fetched yet
    began: float = field(default_factory=time.monotonic)
    checked_at: float = 0.0
    reported_at: float = field(default_factory=time.monotonic)


@dataclass
class Evaluator:
    """The evaluator's parts, and the loop that uses them."""

    description: RunDescription
    store: RunStore
    weights: WeightStore
    retry: RetryLoop
    stop: StopRequest
    best: BestPolicy
    player: EpisodePlayer
    event_log: EventLog = NO_EVENT_LOG

    def __post_init__(self) -> None:
        join = self.description.join
        self.budget = EvaluationBudget(join.evaluation_interval_s, join.evaluation_max_share)
        self.report = EvaluatorReport()
        self.failed_in_a_row = 0
        self.ends_at: float | None = None  # monotonic; set once the run is over, which waits until then
        self.playing = _Playing(None)
        self.took_s: float | None = None  # duration of the last complete evaluation
        self.retry.recurrence.report = self._report_recurring

    def run(self) -> None:
        """Evaluate until a stop is requested, or the run has ended and its last weights are evaluated.

        Raises:
            StoppedError: a stop was requested during an evaluation.
        """
        before = self.retry.call("read the last report", self.store.evaluator)
        self._write_report(replace(before, playing=False, redis=self.report.redis))
        seen = None
        while not self.stop.requested:
            ending = self._is_ending()
            newest = self.retry.call("look at the weights", self.weights.peek)
            if newest is None or newest == seen or self._has_met_target():
                if ending:
                    return
                self.stop.sleep(_POLL_S)
                continue
            if self.ends_at is not None and time.monotonic() >= self.ends_at:
                return
            began, cpu_before_s = time.monotonic(), self.player.cpu_s
            try:
                is_played = self._evaluate()
            except _OutdatedError:
                continue
            if is_played:
                seen, self.failed_in_a_row = newest, 0
            elif ending and self.failed_in_a_row > 1:
                return
            else:
                self._rest_until(began + min(_LONGEST_PAUSE_S, 2.0 ** (self.failed_in_a_row - 1)))
            rest_s = self.budget.rest_s(self.player.cpu_s - cpu_before_s, waits=self.player.waits)
            if not ending:
                self._rest_until(began + rest_s)

    def _is_ending(self) -> bool:
        """Whether the run is over; its end then waits `evaluation_end_wait_s` for the evaluator."""
        self._note_control(self.retry.call("read control", self.store.control))
        return self.ends_at is not None

    def _note_control(self, control: Control) -> None:
        if control.state != STOP:
            self.ends_at = None
        elif self.ends_at is None:
            self.ends_at = time.monotonic() + self.description.join.evaluation_end_wait_s

    def _has_met_target(self) -> bool:
        """Whether the run ended because the last evaluation met the target; then no other one follows."""
        control = self.retry.call("read control", self.store.control)
        last = self.retry.call("read the evaluation", self.store.evaluation)
        return control.state == STOP and last is not None and last.settled_steps == control.target_step

    def _rest_until(self, deadline: float) -> None:
        """Wait until the next evaluation is due; return early when the run ends."""
        while (left := deadline - time.monotonic()) > 0 and not self.stop.requested:
            self.stop.sleep(min(left, 4 * _POLL_S))
            if self._is_ending():
                return

    def _evaluate(self) -> bool:
        """Evaluate the newest weights, report the result, and keep the weights if they are the best."""
        try:
            weights = self.retry.call("fetch weights", self.weights.fetch)
            if weights is None:
                return True
            policy = ActingPolicy(weights, self.description.spec)
            if self.event_log.is_on:
                digest = arrays_digest(weights.arrays)
                self.event_log.write("read", epoch=weights.epoch, version=weights.version, digest=digest)
            self.playing = _Playing(WeightsId(weights.epoch, weights.version))
            result = self.player.evaluate(
                policy,
                self.stop,
                limit_s=self.description.join.evaluation_limit_s,
                may_continue=self._may_continue,
            )
        except (WireError, EnvironmentBrokenError) as error:
            self.stop.sleep(_CHECK_PERIOD_S)
            if self.stop.requested:  # the same signal may have ended the copies' processes first
                raise StoppedError("stopped during an evaluation") from error
            if isinstance(error, WireError):
                check_run(error, self.description, self.store, self.retry)
            _log.error("no evaluation: %s", error)
            self.failed_in_a_row += 1
            failures = self.report.failures + 1
            self._write_report(
                replace(self.report, failures=failures, error=str(error), unfinished="", playing=False)
            )
            return False
        self._record(weights, result)
        return True

    def _may_continue(self, ended: int) -> bool:
        """Check at intervals whether the run has ended, and report progress; returns whether to continue."""
        now, playing = time.monotonic(), self.playing
        if now - playing.checked_at >= _CHECK_PERIOD_S:
            playing.checked_at = now
            with suppress(TransientError), translated():  # else the evaluation continues until Redis answers
                self._note_control(self.store.control())
                if self.ends_at is not None:
                    self._leave_to_newer_weights()
                if now - playing.reported_at >= (_PROGRESS_S if self.ends_at is None else _CHECK_PERIOD_S):
                    playing.reported_at = now
                    to_play = self.description.join.evaluation_episodes
                    self.report = replace(self.report, playing=True, played=ended, to_play=to_play)
                    self.store.write_evaluator(self.report)
        return self.ends_at is None or now < self.ends_at

    def _leave_to_newer_weights(self) -> None:
        """Stop evaluating these weights if the run has ended with newer ones and there is time for those.

        Raises:
            _OutdatedError: the newest weights are evaluated next.
        """
        wait_s = self.description.join.evaluation_end_wait_s
        played_s = time.monotonic() - self.playing.began
        fits = played_s < wait_s / 2 if self.took_s is None else self.took_s < wait_s
        if fits and self.weights.peek() not in (None, self.playing.weights):
            raise _OutdatedError

    def _record(self, weights: Weights, result: Evaluation) -> None:
        """Report the result. A result that was cut does not replace the newest complete one."""
        if not result.complete:
            _log.warning(
                "cut: %d of %d episodes of version %d ended", result.episodes, result.planned, result.version
            )
            text = json.dumps(to_json(result))
            self._write_report(replace(self.report, error="", unfinished=text, playing=False))
            return
        self.took_s = time.monotonic() - self.playing.began
        if self._has_met_target():
            self._write_report(replace(self.report, playing=False))
            return
        is_best = self.best.consider(weights, result)
        best_return = result.return_mean if self.best.return_mean is None else self.best.return_mean
        best = BestEvaluation(best_return, weights.version if is_best else None)
        whole = EvaluatorReport(self.report.evaluations + 1, self.report.failures)
        self.report = replace(whole, unkept=self.best.failure, redis=self.report.redis)
        fields = to_fields(result, best)
        self.retry.call("write the evaluation", lambda: self.store.write_evaluation(fields, self.report))

    def _write_report(self, report: EvaluatorReport) -> None:
        self.report = report
        self.retry.call("report", lambda: self.store.write_evaluator(report))

    def _report_recurring(self, text: str) -> None:
        """Report an error of Redis that recurs, if Redis accepts this write."""
        self.report = replace(self.report, redis=text)
        with suppress(TransientError, ConfigurationError), translated():
            self.store.write_evaluator(self.report)


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
    event_log = EventLog(options.event_log, "evaluator")
    retry = RetryLoop(stop)
    store = RunStore(client, keys)
    try:
        description = wait_for_description(store, retry, stop)
        if description is not None:
            weights = WeightStore(client, keys)
            best = BestPolicy(options.run_dir)
            calls = CallClock()
            player = EpisodePlayer(description, calls)
            evaluator = Evaluator(description, store, weights, retry, stop, best, player, event_log)
            try:
                limit_s = description.join.env_timeout_s
                with Watchdog(calls, limit_s, stop, stopped_status=stopped_status()):
                    evaluator.run()
                why = "the run has ended" if stop.signal is None else f"stopped by {stop.signal.name}"
                _log.info("evaluator leaves: %s; %d evaluations", why, evaluator.report.evaluations)
            finally:
                with closing_within():
                    player.close()
    except StoppedError as error:
        _log.info("%s", error)
    return stopped_status(stop.signal is not None)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("evaluator")
    return run_service(partial(_serve, argv))


if __name__ == "__main__":
    sys.exit(main())
