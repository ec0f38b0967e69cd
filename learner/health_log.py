"""Logs what is wrong with updates, each kind of warning once in ten seconds at most."""

import logging
from collections import defaultdict

from dppo_redis.service.logs import Rarely
from learner.ppo.health import warnings_of
from learner.ppo.update import UpdateReport

_log = logging.getLogger("dppo")


class HealthLog:
    """The warnings of one training."""

    def __init__(self) -> None:
        self._rarely: defaultdict[str, Rarely] = defaultdict(Rarely)

    def consider(self, report: UpdateReport) -> None:
        """Log the warnings of an update."""
        for kind, text in warnings_of(report):
            if self._rarely[kind].due():
                _log.warning("%s", text)
