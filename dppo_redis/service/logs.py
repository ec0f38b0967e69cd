"""Log lines of services: one format, to standard error; supervisord rotates the files."""

import logging
import time


def configure(service: str) -> logging.Logger:
    """Send this process's log lines to standard error, marked with the service's name."""
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {service} %(levelname)s %(message)s",
        force=True,
    )
    return logging.getLogger("dppo")


class RateLimit:
    """Lets a repeated message through once per `interval_s`."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._next = 0.0

    def due(self) -> bool:
        """Whether the message may be written now; counts as written when True."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True
