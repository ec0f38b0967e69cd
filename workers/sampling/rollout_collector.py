"""What the actor's loop and the serial baseline need of a collector, whichever way it samples."""

from typing import Protocol

from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.service.shutdown import StopRequest
from workers.separate.separate_environments import Kind


class RolloutCollector(Protocol):
    """Samples rollouts with environments that it holds."""

    wanted_steps: int  # of the next rollouts; may be set at any time, from any thread
    steps_done: int  # of the running rollout, or of the last one

    @property
    def vectorization(self) -> Kind:
        """How the environments are stepped."""
        ...

    @property
    def step_ms(self) -> float | None:
        """Mean time of one environment's step, in ms; for a native vector version, of all environments."""
        ...

    @property
    def refused_metrics(self) -> int:
        """How many numbers of ended episodes were left out because of their names, so far."""
        ...

    def collect(self, policy: ActingPolicy, stop: StopRequest | None = None) -> Rollout:
        """The next rollout; use or copy it before the next call.

        Raises:
            StoppedError: a stop was requested meanwhile.
            EnvironmentBrokenError: an environment raised.
        """
        ...

    def close(self) -> None:
        """Free the environments."""
        ...
