"""Old data on purpose: the behaviour policy of a serial run is the learner's of exactly k updates ago."""

from collections import deque

from dppo_redis.acting import ActingPolicy


class PolicyHistory:
    """The policies of the last `age` updates and the present one."""

    def __init__(self, age: int) -> None:
        self._policies: deque[ActingPolicy] = deque(maxlen=age + 1)

    def behaviour(self, newest: ActingPolicy) -> ActingPolicy:
        """Add the present policy; the one of `age` updates ago, or the first while there are fewer."""
        self._policies.append(newest)
        return self._policies[0]
