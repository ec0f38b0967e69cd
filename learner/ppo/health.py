"""What somebody should know of an update, as warnings; learner and serial baseline alike."""

import logging

from dppo_redis.service.logs import Rarely
from learner.ppo.update import UpdateReport

RATIO_TOLERANCE = 1e-3
_log = logging.getLogger("dppo")


class Cautions:
    """Warns when actors and learner disagree about the same weights, or a gradient is not finite."""

    def __init__(self) -> None:
        self._rarely = {"skipped": Rarely(), "ratio": Rarely()}

    def consider(self, report: UpdateReport) -> None:
        """Read one report; the same warning comes once in ten seconds at most."""
        if report.skipped_steps and self._rarely["skipped"].due():
            _log.warning(
                "%d of %d gradient steps were skipped: not finite, or without a valid row",
                report.skipped_steps,
                report.skipped_steps + report.gradient_steps,
            )
        error = report.ratio_error
        if error is not None and error > RATIO_TOLERANCE and self._rarely["ratio"].due():
            _log.warning(
                "actors and learner disagree about the probabilities of fresh actions by a factor of "
                "up to %.4f: are all machines on one release?",
                1 + error,
            )
