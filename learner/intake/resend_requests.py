"""Decides when a lock-step learner asks for lost rollouts again, which only their own actor can replace.

The learner asks by publishing the same weights under a new version. An actor that sees the new version sends
again the rollouts that it has sampled with these weights.
"""

import logging
import time
from collections.abc import Callable, Set

from dppo_redis.protocol.lock_step import LockStep

_ASK_PERIOD_S = 1.0
_LONG_WAIT_S = 30.0
_log = logging.getLogger("dppo")


class ResendRequests:
    """Measures the learner's wait for the rollouts of one publication.

    Args:
        plan: the lock-step plan with the number of actors.
        signs: returns how many events so far have shown that rollouts may be lost.
    """

    def __init__(self, plan: LockStep, signs: Callable[[], int]) -> None:
        self._plan = plan
        self._signs = signs
        self._signs_before = 0
        self._published_at = 0.0  # monotonic
        self._has_warned = False

    def published(self) -> None:
        """Note that weights were published."""
        self._published_at, self._signs_before, self._has_warned = time.monotonic(), self._signs(), False

    def is_due(self, update: int, slots: Set[int]) -> bool:
        """Whether to publish the weights again; `slots` are those whose rollouts have arrived."""
        waited_s = time.monotonic() - self._published_at
        if waited_s >= _ASK_PERIOD_S and self._signs() > self._signs_before:
            _log.warning("rollouts may be lost: asking for those of update %d again", update)
            return True
        if waited_s >= _LONG_WAIT_S and not self._has_warned:
            self._has_warned = True
            awaited = sorted(set(range(self._plan.actors)) - slots)
            _log.warning("update %d waits for the rollouts of slots %s", update, awaited)
        return False
