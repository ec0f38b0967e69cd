"""The rule that keeps or drops a rollout, from its header alone. Pure."""

from enum import Enum

from dppo_redis.protocol.lineage import Lineage, PublishedVersions


class Verdict(Enum):
    """The decision about a rollout before it is unpacked."""

    FRESH = "fresh"
    STALE = "stale"
    FROM_THE_FUTURE = "from_the_future"  # refused
    LOST_LINEAGE = "lost_lineage"  # refused: sampled with weights that a restart abandoned
    UNPUBLISHED = "version"  # refused: no weights of this version were ever published


def judge(
    epoch: int,
    update: int,
    *,
    lineage: Lineage,
    learner_update: int,
    max_staleness: int,
    version: int = 0,
    used: PublishedVersions | None = None,
) -> Verdict:
    """Decide whether a rollout may be trained on; staleness is in updates, and the limit is inclusive.

    `used` holds the published versions; None: the rollout's version is not checked.
    """
    if not lineage.contains(epoch, update):
        return Verdict.LOST_LINEAGE
    if used is not None and not used.contains(epoch, version):
        return Verdict.UNPUBLISHED
    staleness = learner_update - update
    if staleness < 0:
        return Verdict.FROM_THE_FUTURE
    return Verdict.FRESH if staleness <= max_staleness else Verdict.STALE
