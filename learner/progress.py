"""What the learner has done so far: counters that the checkpoint keeps and the status shows."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

EPISODES_AVERAGED = 100


@dataclass
class Progress:
    """Counters of one run, over all its learner processes."""

    update: int = 0
    trained_steps: int = 0
    rollouts: int = 0  # trained on
    episodes: int = 0  # finished in trained rollouts
    train_s: float = 0.0  # since the first rollout, time without a learner left out
    staleness_sum: int = 0
    staleness_max: int = 0
    target_step: int | None = None
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=EPISODES_AVERAGED))

    def add_update(self, steps: int, staleness: Sequence[int], returns: Sequence[float]) -> None:
        """Count one update."""
        self.update += 1
        self.trained_steps += steps
        self.rollouts += len(staleness)
        self.staleness_sum += sum(staleness)
        self.staleness_max = max(self.staleness_max, *staleness)
        self.episodes += len(returns)
        self.returns.extend(returns)

    @property
    def staleness_mean(self) -> float:
        """Mean over all trained rollouts, in updates."""
        return self.staleness_sum / self.rollouts if self.rollouts else 0.0

    @property
    def return_mean(self) -> float | None:
        """Mean of the last 100 finished episodes; None before the first."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def full_return_mean(self) -> float | None:
        """The same once there are 100 episodes: what a target is compared with."""
        return self.return_mean if len(self.returns) == EPISODES_AVERAGED else None

    def steps_per_s(self) -> float:
        """Trained steps per second since the first rollout."""
        return self.trained_steps / self.train_s if self.train_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {**vars(self), "returns": list(self.returns)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Progress":
        """Inverse of `to_dict`; raises KeyError where a counter is missing."""
        missing = {f.name for f in fields(Progress)} - set(values)
        if missing:
            raise KeyError(f"no {', '.join(sorted(missing))}")
        returns = deque(values["returns"], maxlen=EPISODES_AVERAGED)
        return Progress(**{**values, "returns": returns})
