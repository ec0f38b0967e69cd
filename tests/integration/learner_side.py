"""The learner's parts, put together as `python -m learner` does, and rollouts for them to read."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

from dppo_redis.errors import WireError
from dppo_redis.protocol.pacing import FleetPacing
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import LearnerStatus
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import RunDescription, Spec
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer, StreamEntry
from dppo_redis.store.run_store import RunStore
from learner.intake.batch_rule import ElasticBatch
from learner.intake.intake import AcceptedRollout, Intake
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import Leadership, make_leadership
from learner.leadership.reserved_versions import ReservedVersions
from tests.factories import make_description, make_header, make_model, make_rollout, make_spec

SPEC = make_spec()
STEPS = 8  # valid rows of a rollout of make_rollout(SPEC): T = 4, N = 2
T = TypeVar("T")


def make_entry(rollout: Rollout | None = None, **header: Any) -> dict[Any, Any]:
    """The fields of a stream entry; `header` replaces values that would fit the rollout."""
    rollout = rollout or make_rollout(SPEC)
    payload = encode_rollout(rollout)
    fields = make_header(SPEC, **{"steps": rollout.steps, "crc": checksum(payload), **header})
    return {name: str(value) for name, value in asdict(fields).items()} | {"payload": payload}


def with_payload(payload: bytes, **header: Any) -> dict[Any, Any]:
    """An entry whose header fits its payload, whatever the payload is."""
    return make_entry(crc=checksum(payload), **header) | {"payload": payload}


def add(client: Client, keys: RunKeys, *entries: dict[Any, Any]) -> list[bytes]:
    """Put entries into the stream as they are."""
    return [cast(bytes, client.xadd(keys.rollouts, entry)) for entry in entries]


def leadership_of(
    client: Client,
    keys: RunKeys,
    stop: StopRequest,
    *,
    owner: str = "learner-1",
    description: RunDescription | None = None,
    reserved: ReservedVersions | None = None,
) -> Leadership:
    return make_leadership(
        client, keys, description or make_description(SPEC), owner, stop, reserved=reserved
    )


def lead(
    client: Client, keys: RunKeys, stop: StopRequest, *, known_epoch: int = 0, update: int = 0, **who: Any
) -> Leadership:
    """A leadership that holds the lease, with its stream, and has published once."""
    leadership = leadership_of(client, keys, stop, **who)
    leadership.lease.acquire(known_epoch, update)
    leadership.bookkeeper.restore_stream()
    publish(leadership, update=update)
    return leadership


def publish(leadership: Leadership, update: int = 0, spec: Spec = SPEC) -> None:
    leadership.publisher.publish(
        make_model(spec, seed=update).acting_arrays(), update, trained_steps=0, settled_steps=0
    )


def die(client: Client, keys: RunKeys) -> None:
    """Kill a learner: its lease expires, and its pending entries stay."""
    client.delete(keys.lease)


def make_keeper(
    client: Client,
    keys: RunKeys,
    leadership: Leadership,
    status: Callable[[], LearnerStatus] | None = None,
    pacing: FleetPacing | None = None,
) -> Keeper:
    return Keeper(
        leadership,
        Registry(client, keys),
        status or (lambda: from_fields(LearnerStatus, {})),
        pacing or FleetPacing(planned_actors=1, rollouts_per_update=2, max_staleness=4, publish_every=1),
    )


@dataclass
class Reader:
    """An intake on a real stream, and what reached the quarantine."""

    intake: Intake
    leadership: Leadership
    consumer: RolloutConsumer

    def poll(self, update: int = 0) -> list[AcceptedRollout] | None:
        return self.intake.poll(update, lambda: self.leadership.lease.lineage)

    def poll_until(self, settled: int, update: int = 0, most: int = 50) -> list[AcceptedRollout]:
        """Poll until `settled` rollouts have an outcome or are in the batch; the batch."""
        batch: list[AcceptedRollout] = []
        for _ in range(most):
            batch += self.poll(update) or []
            if self.leadership.bookkeeper.ledger_audit.ledger.settled + len(batch) >= settled:
                return batch
        raise AssertionError(
            f"{len(batch)} accepted, ledger {self.leadership.bookkeeper.ledger_audit.ledger.counts}"
        )


def make_reader(
    client: Client,
    keys: RunKeys,
    leadership: Leadership,
    *,
    batch_steps: int = 2 * STEPS,
    max_staleness: int = 4,
) -> Reader:
    consumer = RolloutConsumer(client, keys, leadership.bookkeeper.restore_stream)
    store = RunStore(client, keys)

    def quarantine(entry: StreamEntry, error: WireError) -> None:
        store.quarantine(entry.id, error.reason, str(error), entry.fields)

    rule = ElasticBatch(batch_steps, STEPS)
    intake = Intake(
        consumer,
        SPEC,
        leadership.bookkeeper.settle,
        quarantine,
        rule,
        max_staleness,
        versions=lambda: leadership.publisher.versions,
    )
    return Reader(intake, leadership, consumer)


def seqs(batch: Sequence[AcceptedRollout]) -> list[int]:
    return [accepted.header.seq for accepted in batch]


@contextmanager
def in_background(work: Callable[[], T], stop: StopRequest) -> Iterator[Future[T]]:
    """Run `work` in a thread; at the end of the block `stop` is requested, and the thread is joined."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            yield future
        finally:
            stop.request()
