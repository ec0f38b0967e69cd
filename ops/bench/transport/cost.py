"""The time that one rollout took on its way."""

from dataclasses import dataclass


@dataclass
class Cost:
    """Of one rollout, in microseconds."""

    wall: float = 0.0
    cpu: float = 0.0  # of server, producers and consumer together
