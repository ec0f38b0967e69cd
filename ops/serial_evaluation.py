"""Evaluates the serial baseline between updates, as often as a fleet's evaluator does, and at the end."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from dppo_redis.artefacts.best_policy import BestPolicy
from dppo_redis.errors import EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import EvaluationConfig
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from learner.health_log import RunWarnings
from ops.screens.evaluation_summary import describe_cut
from workers.episodes import EpisodePlayer
from workers.watchdog import CallClock

_WARNING = "evaluation"
_LINE_PERIOD_S = 2.0
_log = logging.getLogger("dppo")


class SerialEvaluations:
    """Plays evaluations, keeps the best policy, and decides when the next evaluation is due."""

    def __init__(
        self,
        description: RunDescription,
        settings: EvaluationConfig,
        run_dir: Path,
        calls: CallClock,
        warnings: RunWarnings,
        print_line: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._player = EpisodePlayer(description, calls)
        self._best = BestPolicy(run_dir)
        self._warnings = warnings
        self._print_line = print_line
        self._next = 0.0
        self._newest: Evaluation | None = None
        self.last: Evaluation | None = None  # None if it failed, incomplete if its time limit ended it
        self.complete = 0  # number of complete evaluations

    def is_due(self) -> bool:
        """Whether the time for the next evaluation has come."""
        return self._settings.enabled and time.monotonic() >= self._next

    def play(self, policy: ActingPolicy, stop: StopRequest, *, last: bool = False) -> Evaluation | None:
        """Evaluate `policy`; returns the newest complete evaluation. A run's `last` evaluation has less
        time."""
        began = time.monotonic()
        if not self._settings.enabled or (last and not self._settings.end_wait_s):
            return self._newest
        limit_s = min(self._settings.limit_s, self._settings.end_wait_s) if last else self._settings.limit_s
        try:
            self._keep_result(
                policy,
                self._player.evaluate(
                    policy, stop, limit_s=limit_s, may_continue=self._progress_printer(limit_s)
                ),
            )
        except StoppedError:
            pass  # the previous evaluation stays the newest
        except EnvironmentBrokenError as error:
            _log.error("the evaluation failed: %s", error)
            self.last = None
            self._warnings.add(_WARNING, f"the last evaluation failed: {error}")
        took_s = time.monotonic() - began
        self._next = time.monotonic() + max(
            self._settings.interval_s, took_s / self._settings.max_share - took_s
        )
        return self._newest

    def _keep_result(self, policy: ActingPolicy, evaluation: Evaluation) -> None:
        self.last = evaluation
        if not evaluation.complete:
            self._warnings.add(_WARNING, describe_cut(evaluation, self._newest))
            return
        self._warnings.withdraw(_WARNING)
        self._newest = evaluation
        self.complete += 1
        self._best.consider(policy.weights, evaluation)
        if self._best.failure:
            self._warnings.add("best policy", self._best.failure)

    def _progress_printer(self, limit_s: float) -> Callable[[int], bool]:
        """A callback that prints the progress of a long evaluation every two seconds."""
        next_line = time.monotonic() + _LINE_PERIOD_S

        def may_continue(ended: int) -> bool:
            nonlocal next_line
            if time.monotonic() >= next_line:
                next_line += _LINE_PERIOD_S
                self._print_line(
                    f"evaluation: {ended} of {self._settings.episodes} episodes, at most {limit_s:g} s"
                )
            return True

        return may_continue

    def close(self) -> None:
        """Free the environments."""
        self._player.close()
