"""The best policy of a run's evaluations, kept in its directory: the rule and the files."""

import json
import logging
from dataclasses import asdict
from pathlib import Path

from dppo_redis.files import write_aside
from dppo_redis.reports import Evaluation
from dppo_redis.run_files import write_best
from dppo_redis.weights import Weights

BEST_EVALUATION = "best_evaluation.json"
_log = logging.getLogger("dppo")


class BestPolicy:
    """Keeps the policy with the highest mean return; of equal ones, the first."""

    def __init__(self, run_dir: Path | None) -> None:
        """Goes on from what the directory holds; without one, policies are compared but not kept."""
        self._run_dir = run_dir
        self.return_mean = self._read()

    def consider(self, weights: Weights, evaluation: Evaluation) -> bool:
        """Keep a policy if it is the best so far, and say whether it is; a full disk is reported."""
        is_best = self.return_mean is None or evaluation.return_mean > self.return_mean
        if is_best:
            self.return_mean = evaluation.return_mean
            self._keep(weights, evaluation)
        return is_best

    def _keep(self, weights: Weights, evaluation: Evaluation) -> None:
        if self._run_dir is None:
            return
        try:
            keep_best(self._run_dir, weights, evaluation)
        except OSError as error:
            _log.error("cannot keep the best policy: %s", error)

    def _read(self) -> float | None:
        if self._run_dir is None or not (self._run_dir / BEST_EVALUATION).exists():
            return None
        try:
            return float(json.loads((self._run_dir / BEST_EVALUATION).read_text())["return_mean"])
        except (ValueError, KeyError, OSError) as error:
            _log.warning("the best evaluation so far is unreadable, beginning anew: %s", error)
            return None


def keep_best(run_dir: Path, weights: Weights, evaluation: Evaluation) -> None:
    """Keep a policy and its evaluation; each is written aside, then renamed."""
    write_best(run_dir, weights)
    write_aside(run_dir / BEST_EVALUATION, json.dumps(asdict(evaluation), indent=2).encode())
