"""The learner's own parts without training: lease, intake, settling, publications, and the keeper's thread.

An update takes no time here, so that the actors, the server and these parts are the limit.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.pacing import FleetPacing
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import KeeperStatus, LearnerStatus
from dppo_redis.protocol.run_plan import RunPlan
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer
from dppo_redis.store.run_store import RunStore
from learner.build import build_ppo
from learner.intake.batch_rule import ElasticBatch
from learner.intake.intake import Intake
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import make_leadership


class TimedKeeper(Keeper):
    """The product's, with the time that each round took."""

    rounds: list[tuple[float, float]]  # (seconds, of these computing)

    def tick(self) -> None:
        """Run one round."""
        began, computing = time.monotonic(), time.thread_time()
        super().tick()
        self.rounds.append((time.monotonic() - began, time.thread_time() - computing))


class IntakeLearner:
    """Leads a run and settles what its actors send."""

    def __init__(self, url: str, run: str, planned: RunPlan, stop: StopRequest) -> None:
        client, keys = connect(url, "bench-learner"), RunKeys(run)
        keeper_client = connect(url, "bench-keeper")
        self._clients = (client, keeper_client)
        self.store = RunStore(client, keys)
        self.update = 0
        self.trained = 0  # rollouts
        self.staleness: list[int] = []
        self.rollout_steps = 0.0  # mean of the last batch
        self._waited_s = 0.0
        self._began = time.monotonic()
        self._arrays = build_ppo(planned.config, planned.description, 1).acting_arrays()
        self._leadership = make_leadership(client, keys, planned.description, "bench", stop)
        consumer = RolloutConsumer(client, keys, self._leadership.bookkeeper.restore_stream)
        self._intake = Intake(
            consumer,
            planned.description.spec,
            self._leadership.bookkeeper.settle,
            lambda *_: None,
            ElasticBatch(planned.config.ppo.batch_steps, planned.derived.rollout_rows),
            planned.config.staleness_limit,
            versions=lambda: self._leadership.publisher.versions,
        )
        self.keeper = TimedKeeper(
            self._leadership,
            Registry(keeper_client, keys),
            self._report,
            FleetPacing.of(planned.config, planned.derived),
            recent_wait_share=lambda: self._waited_s / (time.monotonic() - self._began),
        )
        self.keeper.rounds = []

    def start(self) -> None:
        """Take the lease, publish spec and weights, and start the keeper."""
        self._leadership.lease.acquire(0, 0)
        self._leadership.publisher.announce()
        self._leadership.bookkeeper.restore_stream()
        self._publish()
        self.keeper.start()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Settle batch after batch until it is over."""
        while not is_over():
            self.keeper.check()
            began = time.monotonic()
            batch = self._intake.poll(self.update, lambda: self._leadership.lease.lineage)
            self._waited_s += time.monotonic() - began
            if batch is None:
                continue
            self.staleness += [self.update - accepted.header.update for accepted in batch]
            self.update += 1
            self.trained += len(batch)
            self.rollout_steps = sum(accepted.header.steps for accepted in batch) / len(batch)
            self._publish()
            settlements = [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in batch]
            self._leadership.bookkeeper.settle(settlements)
            self._intake.settled(batch)

    def end_run(self) -> None:
        """Ask all actors to leave."""
        self._leadership.publisher.end_run("stopped", None)

    @property
    def has_read_all(self) -> bool:
        """Whether only the rollouts of a batch that is not full are left in the stream."""
        return self.store.counters().backlog <= self._intake.gathered

    def last_status(self) -> KeeperStatus:
        """Write the last status, as a learner does at its end, and return it."""
        self.keeper.close()
        self.keeper.tick()
        return from_fields(KeeperStatus, self.store.status())

    def close(self) -> None:
        """End the keeper's thread, and close the connections."""
        self.keeper.close()
        for client in self._clients:
            client.close()

    def _publish(self) -> None:
        settled_steps = self._leadership.bookkeeper.settled_steps
        self._leadership.publisher.publish(self._arrays, self.update, self.trained, settled_steps)

    def _report(self) -> LearnerStatus:
        return replace(
            from_fields(LearnerStatus, {}),
            state="training",
            update=self.update,
            trained_steps=self.trained,
            dropped_by_actor=self._intake.dropped_by_actor,
            staleness_recent=self._intake.drops.recent_staleness.mean,
            stale_share=self._intake.drops.recent_staleness.share,
        )
