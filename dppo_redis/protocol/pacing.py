"""Rules for the pace of a fleet: rollout length, backlog limits, expected staleness, full batches. Pure.

`run_plan.py` derives a run's numbers with them. The backlog
counts every rollout that is not settled, also those of the update in progress. So a limit of two batches
allows one batch in training and another one that waits.
"""

import math
from dataclasses import dataclass

from dppo_redis.protocol.config import RunConfig

_WORTH_ADVICE = 1.5  # updates; there is no advice below this staleness
_FAR_ABOVE_PLAN = 1.5  # advice is due above this multiple of the planned staleness
_LEAST_VALVE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Derived:
    """The numbers that follow from the configuration and the environment, known before a run starts."""

    rollout_steps: int  # T
    sampled_steps: int  # T; fewer if the actors cannot deliver rollouts of T steps in time
    rollout_rows: int  # rows of a planned actor's rollout of `sampled_steps` steps
    rollouts_per_update: int
    samples_per_update: int
    update_epochs: int
    gradient_steps_per_update: int
    backlog_high: int  # rollouts; an actor starts none while the backlog is this high
    backlog_fresh: int  # the same limit while the learner need not wait for rollouts
    expected_staleness: float  # updates, with the planned actors and a learner that need not wait
    rollout_bytes: int
    learner_bytes: int  # estimated memory of the learner
    valve_bytes: int  # of rollouts in Redis; above it the oldest are dropped


def backlog_high(rollouts_per_update: int, actors: int, max_staleness: int, publish_every: int) -> int:
    """The backlog at which actors wait; below 1 the staleness limit cannot be kept.

    When a rollout starts, at most high - 1 unsettled rollouts and actors - 1 unfinished ones are before
    it. So it is used at most (high + actors - 1) // rollouts_per_update updates later. When it started, its
    weights were at most publish_every - 1 updates old. This holds for actors of about equal speed; rollouts
    of a much slower actor may be dropped. Two batches keep the learner busy, one in training and one in
    reserve; the staleness limit may require less.
    """
    within_limit = rollouts_per_update * (max_staleness + 2 - publish_every) - actors
    return min(2 * rollouts_per_update, within_limit)


def least_staleness_limit(rollouts_per_update: int, actors: int, publish_every: int) -> int:
    """The lowest `max_staleness`, in updates, with which `backlog_high` is at least 1."""
    return math.ceil((actors + 1) / rollouts_per_update) + publish_every - 2


def backlog_fresh(high: int, rollouts_per_update: int, actors: int) -> int:
    """The backlog at which actors wait while the learner always has enough rollouts.

    Then all actors wait for the same publication and start together. With this limit they fill at most two
    batches, so that data are one update old. One rollout beyond a batch lets sampling and training overlap.
    Fleets that are just fast enough, or whose actors differ much in speed, need `high`.
    """
    return min(high, max(rollouts_per_update + 1, 2 * rollouts_per_update - actors + 1))


@dataclass(frozen=True)
class Pace:
    """The rollout length and the backlog limit with which a fleet samples."""

    rollout_steps: int  # of each rollout; at most T
    rollouts_per_update: int
    backlog_high: int  # rollouts; the limit while the learner waits for rollouts


@dataclass(frozen=True)
class FleetPacing:
    """Rollout length and backlog limit for the number of actors that are running, planned or not."""

    planned_actors: int
    rollouts_per_update: int  # of T steps
    max_staleness: int  # 0: lock-step mode
    publish_every: int
    rollout_bytes: int = 0  # of a planned actor
    rollout_steps: int = 1  # T
    envs_per_actor: int = 1
    batch_steps: int = 1
    keeps_length: bool = True  # lock-step mode, or a memory that is trained on whole rollouts

    @staticmethod
    def of(config: RunConfig, derived: Derived) -> "FleetPacing":
        """The pacing of a run with its planned actors."""
        return FleetPacing.with_length(config, derived.rollout_steps, derived.rollout_bytes)

    @staticmethod
    def with_length(config: RunConfig, rollout_steps: int, rollout_bytes: int = 0) -> "FleetPacing":
        """The pacing of a run whose rollouts have `rollout_steps` steps and, if known, `rollout_bytes`."""
        rows, batch_steps = rollout_steps * config.envs_per_actor, config.ppo.batch_steps
        return FleetPacing(
            planned_actors=config.actors,
            rollouts_per_update=rollouts_missing(0, rows, batch_steps),
            max_staleness=config.staleness_limit,
            publish_every=config.publish_every,
            rollout_bytes=rollout_bytes,
            rollout_steps=rollout_steps,
            envs_per_actor=config.envs_per_actor,
            batch_steps=batch_steps,
            keeps_length=config.lock_step or config.network.memory != "none",
        )

    def pace(self, actors: int) -> Pace:
        """The pace of `actors` actors. A fleet larger than planned samples shorter rollouts.

        Their length is that of a run planned for this fleet. So a batch still has one rollout of each actor,
        and staleness does not grow. With a fixed length all actors would sample at once, and only some could
        deliver in time. A run that is resumed with more planned actors has the same problem.
        """
        steps, per_update = self.rollout_steps, self.rollouts_per_update
        is_large = backlog_high(per_update, actors, self.max_staleness, self.publish_every) < 1
        if (is_large or actors > self.planned_actors) and not self.keeps_length:
            steps = min(steps, self._fitting_steps(actors))
            per_update = rollouts_missing(0, steps * self.envs_per_actor, self.batch_steps)
        if self.max_staleness == 0:
            return Pace(steps, per_update, per_update)
        high = backlog_high(per_update, actors, self.max_staleness, self.publish_every)
        return Pace(steps, per_update, max(1, high))

    def _fitting_steps(self, actors: int) -> int:
        return max(1, self.batch_steps // (actors * self.envs_per_actor))

    def advice(self, actors: int) -> str:
        """Advice if this fleet is too large for rollouts of a fixed length; else empty."""
        pace, planned = self.pace(actors), self.pace(self.planned_actors)
        if actors <= self.planned_actors or self.max_staleness == 0:
            return ""
        staleness = self._staleness(pace, actors)
        if staleness <= max(_WORTH_ADVICE, self._staleness(planned, self.planned_actors)):
            return ""
        needed = least_staleness_limit(pace.rollouts_per_update, actors, self.publish_every)
        limit = f"max_staleness to {needed} or more, or " if needed > self.max_staleness else ""
        steps = min(self.rollout_steps, self._fitting_steps(actors))
        return (
            f"{actors} actors sample a run planned for {self.planned_actors}, and its rollouts keep their "
            f"{self.rollout_steps} steps, so that the staleness reaches {staleness:.1f} updates: in a new "
            f"run set {limit}actors to {actors} or rollout_steps to {steps}"
        )

    def staleness_advice(self, actors: int, staleness: float | None) -> str:
        """Advice if the mean staleness is far above that of the planned fleet; else empty."""
        planned = self.pace(self.planned_actors)
        high, per_update = planned.backlog_high, planned.rollouts_per_update
        usual = expected_staleness(high, self.planned_actors, per_update, self.publish_every)
        if self.max_staleness == 0 or staleness is None or staleness <= _FAR_ABOVE_PLAN * max(1.0, usual):
            return ""
        larger = f", in a new run set actors to {actors}" if actors > self.planned_actors else ""
        return (
            f"the mean staleness is {staleness:.1f} updates, and would be at most {usual:.1f} "
            f"with the {self.planned_actors} equally fast actors that were planned: use fewer or faster ones "
            f"of the {actors}{larger}, or correct for it (--ppo.correction)"
        )

    def _staleness(self, pace: Pace, actors: int) -> float:
        backlog_limit = backlog_fresh(pace.backlog_high, pace.rollouts_per_update, actors)
        return expected_staleness(backlog_limit, actors, pace.rollouts_per_update, self.publish_every)


def valve_bytes(high: int, actors: int, rollout_bytes: int) -> int:
    """The bytes of rollouts that the stream may hold.

    The limit is twice the most that actors push within the backlog limit: only a defect or an intruder
    exceeds it.
    """
    return max(_LEAST_VALVE_BYTES, 2 * (high + actors) * rollout_bytes)


def valve_excess(backlog: int, stream_bytes: int, high: int, actors: int, limit: int) -> int:
    """The number of the oldest rollouts to drop: down to half the limit, so that drops are rare.

    Rollouts that actors may push within the backlog limit are never dropped.
    """
    if stream_bytes <= limit:
        return 0
    return max(0, backlog - max(high + actors, backlog * limit // (2 * stream_bytes)))


def expected_staleness(limit: int, actors: int, rollouts_per_update: int, publish_every: int) -> float:
    """Mean staleness, in updates, of a rollout when it is used, while the learner is the bottleneck.

    Then all actors wait for the same publication and start together, so that the backlog grows to
    limit + actors - 1. One batch of it is in training; the others wait. If there are more actors than
    rollouts in an update, not all of them start at once, and the staleness stays below this value.
    """
    return max(0.0, (limit + actors - 1) / rollouts_per_update - 1) + (publish_every - 1) / 2


def batch_is_full(valid_rows: int, last_rollout_rows: int, batch_steps: int) -> bool:
    """Whether a batch of whole rollouts is as near to `batch_steps` as whole rollouts allow.

    Automatic resets cost a native vector environment a few rows per rollout. Waiting for one more rollout
    because of them would make every batch half as large again.
    """
    return valid_rows > 0 and valid_rows + last_rollout_rows / 2 >= batch_steps


def rollouts_missing(valid_rows: int, last_rollout_rows: int, batch_steps: int) -> int:
    """The number of further rollouts, each as large as the last one, that make the batch full; at least 1."""
    return max(1, math.ceil((batch_steps - valid_rows) / last_rollout_rows - 0.5))
