"""What goes wrong with an environment, and when a process gives up on it. Actors and the baseline alike.

Environments that raise are built anew after a pause; a rollout that may not be used (a number that is
not finite, say) is dropped. Only what happens again and again ends the process.
"""

import logging
import traceback

from dppo_redis.errors import EnvironmentBrokenError, WireError
from dppo_redis.service.logs import Rarely

MOST_FAILURES = 5
MOST_REFUSED = 10
_log = logging.getLogger("dppo")


class Trouble:
    """Counts failures of the environments, and rollouts refused."""

    def __init__(self) -> None:
        self.failures = 0  # of the environments, in a row
        self.refused = 0  # rollouts, since the start
        self._refused_in_a_row = 0
        self._rarely = Rarely()

    def broke(self, error: EnvironmentBrokenError) -> None:
        """The environments raised: count it, and show the original traceback."""
        self.failures += 1
        _log.error("%s\n%s", error, "".join(traceback.format_exception(error)))

    def pause_s(self, error: EnvironmentBrokenError) -> float:
        """Seconds to wait before they are built anew.

        Raises:
            EnvironmentBrokenError: they have failed too often in a row.
        """
        if self.failures >= MOST_FAILURES:
            raise EnvironmentBrokenError(f"the environment failed {self.failures} times in a row: {error}")
        return min(5.0, 0.2 * 2.0**self.failures)

    def sampled(self) -> None:
        """A whole rollout was sampled."""
        self.failures = 0

    def refuse(self, error: WireError) -> None:
        """A rollout may not be used.

        Raises:
            EnvironmentBrokenError: so it was too often in a row.
        """
        self.refused += 1
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= MOST_REFUSED:
            raise EnvironmentBrokenError(
                f"{self._refused_in_a_row} rollouts in a row could not be used: {error}"
            ) from error
        if self._rarely.due():
            _log.error("dropped a rollout of this process's own: %s", error)

    def used(self) -> None:
        """A rollout passed."""
        self._refused_in_a_row = 0
