"""What an actor counts and times, and its report for the registry."""

import math
import time
from dataclasses import dataclass, field
from typing import Protocol

from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.service.service_deaths import NO_DEATHS, Deaths


class PushCounts(Protocol):
    """Pushes with a trouble."""

    ambiguous: int  # sent again, as the reply was lost
    refused_full: int  # refused for want of memory


@dataclass
class ActorStats:
    """Counts and times that an actor reports about itself."""

    slot: int
    boot: int
    started: float = field(default_factory=time.monotonic)
    pushes: int = 0
    last_push: float = 0.0  # seconds since 1970
    steps: int = 0
    waited_s: float = 0.0  # for room in the backlog
    last_error: str = ""
    rollout_s: float = 0.0  # duration of the last rollout
    deaths: Deaths = NO_DEATHS  # of the processes before this one
    rollout_began: float | None = None  # monotonic; None between rollouts
    is_registered: bool = False  # this process has registered
    fastest_read_s: float = math.inf  # of a snapshot

    def add_read(self, seconds: float) -> float:
        """Note how long reading a snapshot took; returns how much longer than the fastest one."""
        self.fastest_read_s = min(self.fastest_read_s, seconds)
        return seconds - self.fastest_read_s

    def report(self, policy: ActingPolicy | None, pushes: PushCounts, refused: int) -> ActorReport:
        """The report for the registry: these numbers and those of the actor's parts."""
        lived_s = max(1e-9, time.monotonic() - self.started)
        return ActorReport(
            boot=self.boot,
            version=policy.weights.version if policy else 0,
            epoch=policy.weights.epoch if policy else 0,
            pushes=self.pushes,
            last_push=self.last_push,
            steps=self.steps,
            fps=self.steps / lived_s,
            wait_share=self.waited_s / lived_s,
            refused=refused,
            ambiguous=pushes.ambiguous,
            refused_full=pushes.refused_full,
            last_error=self.last_error,
            deaths=self.deaths.faults,
            killed=self.deaths.killed,
            last_death=self.deaths.last,
        )
