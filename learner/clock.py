"""How long a run has been training: since its first rollout, pauses and time without a learner left out."""

import time


class TrainingClock:
    """Goes on from what earlier learner processes of the run have spent."""

    def __init__(self, spent_s: float = 0.0) -> None:
        self._spent_s = spent_s  # until it last began to run
        self._since: float | None = None  # monotonic; None while it stands still
        self.has_begun = False
        self.is_paused = False

    def begin(self) -> None:
        """The first rollout is there; begins once."""
        if not self.has_begun:
            self.has_begun = True
            self._since = time.monotonic()

    def pause(self) -> None:
        """Stand still, until `go_on`."""
        self._spent_s, self._since = self.read_s(), None
        self.is_paused = True

    def go_on(self) -> None:
        """The end of a pause, if there was one."""
        if self.is_paused and self.has_begun:
            self._since = time.monotonic()
        self.is_paused = False

    def read_s(self) -> float:
        """Seconds so far."""
        return self._spent_s + (time.monotonic() - self._since if self._since is not None else 0.0)
