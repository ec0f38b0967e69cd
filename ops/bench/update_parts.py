"""Where a learner's computing time goes in an update: its own parts in turn, around a real Redis."""

import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.report_fields import to_fields
from dppo_redis.protocol.rollout import Rollout, RolloutHeader
from dppo_redis.protocol.run_plan import RunPlan
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.pending import StreamEntry
from dppo_redis.store.rollout_stream import RolloutConsumer, RolloutProducer
from dppo_redis.store.run_store import RunStore
from learner.build import build_ppo
from learner.intake.batch_rule import ElasticBatch
from learner.intake.intake import AcceptedRollout, Intake
from learner.leadership.leadership import make_leadership
from learner.malloc import keep_freed_memory
from learner.metrics import MetricsFiles
from learner.ppo.batch import stack
from learner.ppo.prepare import prepare
from learner.progress import Progress
from learner.training import Training
from ops.bench.server import own_server

PARTS = ("read", "judge, decode", "stack", "prepare", "passes", "publish", "settle", "records")
_T = TypeVar("_T")


def _timed(call: Callable[[], _T]) -> tuple[_T, float]:
    """What a call returns, and its milliseconds of computing time."""
    began = time.process_time()
    result = call()
    return result, 1e3 * (time.process_time() - began)


class _TimedEntries:
    """The stream's entries, read as a whole; how long that took."""

    def __init__(self, consumer: RolloutConsumer) -> None:
        self._consumer = consumer
        self.ms = 0.0

    def read(self, count: int, block_ms: int, at_once: int) -> Iterable[StreamEntry]:
        began = time.process_time()
        entries = list(self._consumer.read(count, block_ms, at_once))
        self.ms += 1e3 * (time.process_time() - began)
        return entries

    def survived(self) -> None:
        self._consumer.survived()


class LearnerParts:
    """A learner without its loop, keeper and fleet."""

    def __init__(self, client: Client, planned: RunPlan, directory: Path) -> None:
        self.planned, self.client, self.keys = planned, client, RunKeys("bench")
        description, config = planned.description, planned.config
        stop = StopRequest()
        self.leadership = make_leadership(client, self.keys, description, "bench", stop)
        self.leadership.lease.acquire(0, 0)
        self.leadership.publisher.heal()
        self.leadership.bookkeeper.restore_stream()
        ppo = build_ppo(config, description, planned.derived.update_epochs)
        self.training = Training(config, ppo, Progress(), None, MetricsFiles(directory, 0), None)
        self.training.begin()
        self.store = RunStore(client, self.keys)
        self.entries = _TimedEntries(
            RolloutConsumer(client, self.keys, self.leadership.bookkeeper.restore_stream)
        )
        rule = ElasticBatch(config.ppo.batch_steps, planned.derived.rollout_rows)
        settle = self.leadership.bookkeeper.settle
        self.intake = Intake(self.entries, description.spec, settle, lambda *_: None, rule, 4)
        self.producer = RolloutProducer(client, self.keys, stop)
        self.boot, self.seq = secrets.token_hex(8), 0
        self.first = {name: x.clone() for name, x in ppo.model.state_dict().items()}
        self.publish()

    def publish(self) -> None:
        """Publish the present weights, as the loop does after an update."""
        progress = self.training.progress
        self.leadership.publisher.publish(
            self.training.ppo.acting_arrays(), progress.update, progress.trained_steps, progress.trained_steps
        )

    def push(self, rollout: Rollout) -> None:
        """Send a rollout, as an actor with the newest weights does."""
        payload, self.seq = encode_rollout(rollout), self.seq + 1
        weights = self.producer.read_pacing().weights
        assert weights is not None
        header = RolloutHeader(
            actor=0, boot=self.boot, seq=self.seq, epoch=weights.epoch, version=weights.version,
            update=self.training.progress.update, steps=rollout.steps, crc=checksum(payload),
            spec=self.planned.description.digest,
        )  # fmt: skip
        self.producer.push(header, payload)

    def poll(self) -> list[AcceptedRollout]:
        """The rollouts of a batch."""
        while True:
            batch = self.intake.poll(self.training.progress.update, lambda: self.leadership.lease.lineage)
            if batch is not None:
                return batch

    def settle(self, accepted: Sequence[AcceptedRollout]) -> None:
        """Record that a batch was trained on, as the loop does after publishing."""
        self.leadership.bookkeeper.settle(
            [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in accepted]
        )
        self.intake.settled(list(accepted))

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """One update on `rollouts`: milliseconds of each part.

        What training does before its passes is done once more, outside of it, to be measured.
        """
        training, planned = self.training, self.planned
        ppo = training.ppo
        ppo.model.load_state_dict(self.first)  # the policy that played them
        for rollout in rollouts:
            self.push(rollout)
        self.entries.ms = 0.0
        accepted, intake_ms = _timed(self.poll)
        fresh = [a.rollout for a in accepted]
        batch, stack_ms = _timed(lambda: stack(fresh))
        _, prepare_ms = _timed(
            lambda: prepare(ppo.model, planned.description.spec, ppo.ppo, None, batch, ppo.device)
        )
        trained, train_ms = _timed(lambda: training.train(fresh, [0] * len(fresh), 0.0))
        _, publish_ms = _timed(self.publish)
        _, settle_ms = _timed(lambda: self.settle(accepted))
        steps = training.progress.trained_steps
        _, records_ms = _timed(
            lambda: self.store.append_metrics(
                {"kind": "update", **to_fields(training.record(trained, settled_steps=steps, version=1))}
            )
        )
        measured = (
            *(self.entries.ms, intake_ms - self.entries.ms, stack_ms, prepare_ms),
            *(train_ms - stack_ms - prepare_ms, publish_ms, settle_ms, records_ms),
        )
        return dict(zip(PARTS, measured, strict=True))


def measure_parts(planned: RunPlan, rollouts: Sequence[Rollout], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of computing time of each part, of `repeats` updates on the same rollouts."""
    keep_freed_memory()  # as a learner
    with tempfile.TemporaryDirectory(prefix="dppo-") as place, own_server() as (client, _):
        learner = LearnerParts(client, planned, Path(place))
        learner.update(rollouts)  # the first one allocates
        updates = [learner.update(rollouts) for _ in range(repeats)]
        learner.training.metrics.close()
    return {name: [update[name] for update in updates] for name in PARTS}
