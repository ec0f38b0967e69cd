"""Builds lease, publisher and bookkeeper around one fence, as one value for loop and keeper."""

from collections.abc import Mapping
from dataclasses import dataclass

from dppo_redis.protocol.ledger import LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from learner.leadership.bookkeeper import Bookkeeper
from learner.leadership.fence import Fence
from learner.leadership.lease import Lease
from learner.leadership.published_weights import PublishedWeights
from learner.leadership.publisher import Publisher
from learner.leadership.reserved_versions import ReservedVersions


@dataclass(frozen=True)
class Leadership:
    """The parts with which one learner process leads a run."""

    fence: Fence
    lease: Lease
    publisher: Publisher
    bookkeeper: Bookkeeper

    def restore(
        self, version: int, lineage: Lineage, ledger_audit: LedgerAudit, boots: Mapping[str, int]
    ) -> None:
        """Continue from a checkpoint; called before the lease is taken."""
        self.publisher.restore(version, boots)
        self.lease.restore(lineage)
        self.bookkeeper.restore(ledger_audit)


def make_leadership(
    client: Client,
    keys: RunKeys,
    description: RunDescription,
    owner: str,
    stop: StopRequest,
    event_log: EventLog = NO_EVENT_LOG,
    reserved: ReservedVersions | None = None,
) -> Leadership:
    """Build all parts. Sends nothing to Redis."""
    reserved = reserved or ReservedVersions()
    fence = Fence(client, keys, event_log)
    weights = PublishedWeights(fence, reserved)
    lease = Lease(fence, weights, reserved, owner, stop)
    publisher = Publisher(fence, lease, weights, description)
    return Leadership(fence, lease, publisher, Bookkeeper(fence, lease))
