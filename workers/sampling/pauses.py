"""How long an actor pauses before it asks again whether it may sample."""

import random
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
FIRST_PAUSE_S = 0.004
LONGEST_PAUSE_S = 0.05
JITTER = random.Random()  # the user's code may seed the global one, and then all actors pause alike
_GROWTH = 1.5
_LONGEST_QUEUED_PAUSE_S, _QUEUED_TIMES = 1.0, 20


def longest_pause(rollout_s: float, waited_s: float, queued_s: float = 0.0) -> float:
    """Longest mean pause, in seconds, before an actor that has waited `waited_s` reads Redis again.

    `queued_s` is how much longer the last read took than the fastest one. It is long where many actors wait.
    Then all of them must read less often, so that the learner can read the rollouts.

    The pause is short compared with a rollout, because all actors should start after the same publication. An
    actor that reads later than a faster one has delivered finds the backlog full, and the next batch comes
    late. After a long wait the pause may be longer: that loses little, and spares Redis the reads of a large
    fleet.
    """
    longest_s = max(LONGEST_PAUSE_S, min(_LONGEST_QUEUED_PAUSE_S, rollout_s / 4, _QUEUED_TIMES * queued_s))
    return max(FIRST_PAUSE_S, min(longest_s, max(rollout_s / 4, waited_s / 50)))


class AskedRarely(Generic[T]):
    """A question to Redis that the hot path asks all the time: after a no it pauses, longer each time."""

    def __init__(self, question: Callable[[], T | None]) -> None:
        self._question = question
        self._pause_s, self._next = FIRST_PAUSE_S, 0.0

    def __call__(self) -> T | None:
        """The answer; None if it is no, or if it is too early to ask again."""
        if time.monotonic() < self._next:
            return None
        answer = self._question()
        if answer is None:
            self._next = time.monotonic() + JITTER.uniform(0.5, 1.5) * self._pause_s
            self._pause_s = min(_GROWTH * self._pause_s, LONGEST_PAUSE_S)
        else:
            self._pause_s = FIRST_PAUSE_S
        return answer
