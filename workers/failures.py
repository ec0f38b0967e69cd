"""Counts the failures of environments, and decides when an actor or the serial baseline gives up.

Environments that raise are rebuilt after a pause. A refused rollout is dropped, for example one with a number
that is not finite. Only repeated failures end the process. Building is retried for a limited time, not for a
limited number of times, because the environments may wait for a licence or for a simulator that still starts.
"""

import logging
import time
import traceback

from dppo_redis.errors import EnvironmentBrokenError, EnvironmentNotBuiltError, WireError
from dppo_redis.service.logs import RateLimit

MOST_FAILURES = 5
MOST_REFUSED = 10
_LONGEST_PAUSE_S = 5.0
_log = logging.getLogger("dppo")


class FailureCount:
    """Counts failures of the environments and refused rollouts."""

    def __init__(self, retry_s: float = 30.0) -> None:
        """Count failures; building is retried for `retry_s` seconds."""
        self.failures = 0  # of the environments, in a row
        self._retry_s = retry_s
        self._failing_since = 0.0
        self.refused = 0  # rollouts, since the start
        self._refused_in_a_row = 0
        self._rate_limit = RateLimit()

    def count_failure(self, error: EnvironmentBrokenError) -> None:
        """Count that the environments raised, and log the original traceback."""
        if not self.failures:
            self._failing_since = time.monotonic()
        self.failures += 1
        _log.error("%s\n%s", error, "".join(traceback.format_exception(error)))

    def pause_s(self, error: EnvironmentBrokenError) -> float:
        """Seconds to wait before the environments are rebuilt.

        Raises:
            EnvironmentBrokenError: they have failed too often in a row.
        """
        pause_s = min(_LONGEST_PAUSE_S, 0.2 * 2.0**self.failures)
        if isinstance(error, EnvironmentNotBuiltError):
            tried_s = time.monotonic() - self._failing_since
            if tried_s >= self._retry_s:
                raise EnvironmentBrokenError(
                    f"the environment could not be built for {tried_s:.0f} s, {self.failures} times: {error}"
                )
            return max(0.01, min(pause_s, self._retry_s - tried_s))
        if self.failures >= MOST_FAILURES:
            raise EnvironmentBrokenError(f"the environment failed {self.failures} times in a row: {error}")
        return pause_s

    def sampled(self) -> None:
        """Note that a whole rollout was sampled, which ends a row of failures."""
        self.failures = 0

    def refuse(self, error: WireError) -> None:
        """Count a refused rollout.

        Raises:
            EnvironmentBrokenError: too many in a row were refused.
        """
        self.refused += 1
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= MOST_REFUSED:
            raise EnvironmentBrokenError(
                f"{self._refused_in_a_row} rollouts in a row could not be used: {error}"
            ) from error
        if self._rate_limit.due():
            _log.error("dropped a rollout that this process sampled: %s", error)

    def used(self) -> None:
        """Note that a rollout was accepted, which ends a row of refused ones."""
        self._refused_in_a_row = 0
