"""Counts a run's updates, trained steps and episodes, for its checkpoints and its status."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dppo_redis.spaces.episode_metrics import means
from dppo_redis.spaces.metric_names import MAX_NAMES

EPISODES_AVERAGED = 100
_METRICS = "metrics"  # the only part that a checkpoint may lack


@dataclass
class MetricWindow:
    """The numbers that the environment reported in the last 100 episodes that ended."""

    episodes: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=EPISODES_AVERAGED))
    names: dict[str, None] = field(default_factory=dict)  # the first 32 of the run, in order
    left_out: int = 0  # numbers of other names

    def add(self, episodes: Iterable[Mapping[str, float]]) -> None:
        """Add episodes, including those that reported nothing."""
        for episode in episodes:
            for name in episode:
                if name in self.names or len(self.names) < MAX_NAMES:
                    self.names[name] = None
                else:
                    self.left_out += 1
            self.episodes.append({name: number for name, number in episode.items() if name in self.names})

    @property
    def means(self) -> dict[str, float]:
        """The mean of each number over those of the last 100 episodes that reported it."""
        return means(self.episodes, self.names)


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

    metrics: MetricWindow = field(default_factory=MetricWindow)

    def add_update(
        self,
        steps: int,
        staleness: Sequence[int],
        returns: Sequence[float],
        metrics: Iterable[Mapping[str, float]] = (),
    ) -> None:
        """Count one update; `returns` and `metrics` are those of the episodes that ended in it."""
        self.update += 1
        self.trained_steps += steps
        self.rollouts += len(staleness)
        self.staleness_sum += sum(staleness)
        self.staleness_max = max(self.staleness_max, *staleness)
        self.episodes += len(returns)
        self.returns.extend(returns)
        self.metrics.add(metrics)

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
        """Mean of the last 100 finished episodes; None before there are 100. A target is compared with it."""
        return self.return_mean if len(self.returns) == EPISODES_AVERAGED else None

    def steps_per_s(self) -> float:
        """Trained steps per second since the first rollout."""
        return self.trained_steps / self.train_s if self.train_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        values = {**vars(self), "returns": list(self.returns)}
        del values[_METRICS]
        # Without numbers of the environment, an earlier release can read the checkpoint, too.
        return {**values, _METRICS: list(self.metrics.episodes)} if self.metrics.names else values

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Progress":
        """Inverse of `to_dict`; raises KeyError where a counter is missing."""
        missing = {f.name for f in fields(Progress)} - {_METRICS} - set(values)
        if missing:
            raise KeyError(f"no {', '.join(sorted(missing))}")
        returns = deque(values["returns"], maxlen=EPISODES_AVERAGED)
        metrics = MetricWindow()
        metrics.add(values.get(_METRICS, ()))
        return Progress(**{**values, "returns": returns, _METRICS: metrics})
