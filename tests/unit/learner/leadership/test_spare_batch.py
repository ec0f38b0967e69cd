"""The spare batch of a learner in a simulated fleet."""

import heapq
import random
from dataclasses import dataclass, field

import pytest

from dppo_redis.protocol.pacing import backlog_fresh, backlog_high
from learner.leadership.spare_batch import SpareBatch

UPDATE_S = 1.0


@dataclass
class UnevenFleet:
    """Actors of different speeds, and a learner that counts what it waits for them, as the loop does."""

    rollout_s: list[float]
    per_update: int
    fresh: bool | None = None  # None: as SpareBatch says
    now: float = 0.0
    updates: int = 0
    idle_since: float = 0.0
    wait_share: float = 0.0
    waiting: list[int] = field(default_factory=list)
    training: list[int] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)

    def run(self, seconds: float) -> tuple[float, float]:
        """Updates per second, and the mean staleness in updates of the trained rollouts."""
        rng, spare_batch, actors = random.Random(0), SpareBatch(), len(self.rollout_s)
        high = backlog_high(self.per_update, actors, 4, 1)
        low = backlog_fresh(high, self.per_update, actors)
        events: list[tuple[float, int, int]] = []  # time, actor or -1, update of the weights
        resting = list(range(actors))
        while self.now < seconds:
            wanted = (
                spare_batch.wanted(self.wait_share, self.updates) if self.fresh is None else not self.fresh
            )
            rng.shuffle(resting)
            while resting and len(self.waiting + self.training) < (high if wanted else low):
                actor = resting.pop()
                lasts = self.rollout_s[actor] * rng.uniform(0.85, 1.15)
                heapq.heappush(events, (self.now + lasts, actor, self.updates))
            self.now, actor, update = heapq.heappop(events)
            if actor < 0:
                self.training, self.updates, self.idle_since = [], self.updates + 1, self.now
            else:
                self.waiting.append(update)
                resting.append(actor)
            if not self.training and len(self.waiting) >= self.per_update:
                self._train()
                heapq.heappush(events, (self.now + UPDATE_S, -1, 0))
        return self.updates / seconds, sum(self.ages) / len(self.ages)

    def _train(self) -> None:
        batch = self.per_update
        self.training, self.waiting = self.waiting[:batch], self.waiting[batch:]
        self.ages += [self.updates - update for update in self.training]
        waited = self.now - self.idle_since
        self.wait_share += 0.05 * (waited / (waited + UPDATE_S) - self.wait_share)


def test_a_learner_that_is_busy_all_the_time_gets_data_one_update_old() -> None:
    rate, age = UnevenFleet([0.4, 0.5, 0.6, 0.5], per_update=4).run(500)
    assert rate == pytest.approx(1, abs=0.01)
    assert age == pytest.approx(1, abs=0.05)
    _, with_spare = UnevenFleet([0.4, 0.5, 0.6, 0.5], per_update=4, fresh=False).run(500)
    assert with_spare > 1.6


@pytest.mark.parametrize("slowness", [0.8, 0.95, 1.1, 1.3])
def test_an_uneven_fleet_that_is_just_fast_enough_is_hardly_held_up(slowness: float) -> None:
    """Two actors are three times as fast as the others."""
    rollout_s = [slowness * x for x in (2.0, 2 / 3, 2.0, 2 / 3)]
    best, _ = UnevenFleet(rollout_s, per_update=4, fresh=False).run(2000)
    held_up, _ = UnevenFleet(rollout_s, per_update=4, fresh=True).run(2000)
    rate, _ = UnevenFleet(rollout_s, per_update=4).run(2000)
    assert held_up < 0.92 * best, "the spare batch does not matter here"
    assert rate > 0.95 * best


def test_the_first_wait_of_a_run_is_no_reason() -> None:
    spare_batch = SpareBatch()
    assert not spare_batch.wanted(0.05, 1)
    assert spare_batch.wanted(0.06, 2)
    assert spare_batch.wanted(0.0, 201)
    assert not spare_batch.wanted(0.0, 202)
