"""The weights that were published last: their version, and publishing them again.

Versions never fall and none is used twice. Every method but `restore` and `begin` is called with the fence's
lock held: by the publisher (the loop's thread publishes, the keeper's heals) and by a renewal that took a new
epoch (either). None of them waits for Redis.
"""

import logging
from dataclasses import replace

from dppo_redis.errors import FencedError
from dppo_redis.protocol.lineage import PublishedVersions
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.event_log import arrays_digest
from dppo_redis.store.healable_keys import HealableKeys
from learner.leadership.fence import Fence
from learner.leadership.reserved_versions import ReservedVersions
from learner.leadership.weights_watch import WeightsWatch

_log = logging.getLogger("dppo")


class PublishedWeights:
    """Remembers them, so that they can be put back."""

    def __init__(self, fence: Fence, reserved: ReservedVersions) -> None:
        self.version = 0
        self.update = 0  # no rollout of this epoch is beyond it
        self.used = (
            PublishedVersions()
        )  # a frozen value, replaced before each publication: any thread may read it
        self._fence = fence
        self._reserved = reserved
        self._last: Weights | None = None
        self._watch = WeightsWatch(fence.client, fence.keys)

    def restore(self, version: int) -> None:
        """Go on from a checkpoint; called before `begin`."""
        self.version = version

    def begin(self, update: int) -> None:
        """The lease was taken at `update`: go on above the versions that a predecessor may have used."""
        self.update = update
        self.version = max(self.version, self._reserved.read().version)

    def publish(self, weights: Weights) -> None:
        """Publish them, if need be under a higher version than they have."""
        stored = self._try_publish(weights)
        if stored is not None:  # a version above ours, of a lost or restored past: go above it
            self.used = self.used.beyond(stored)
            weights = replace(weights, version=stored + 1)
            self._try_publish(weights)
        self.version = weights.version
        self.update = weights.update
        self._last = weights

    def republish(self) -> None:
        """Publish the last ones again, under the present epoch and the next version."""
        if self._last is not None:
            self.publish(replace(self._last, epoch=self._fence.epoch, version=self.version + 1))

    def heal(self, healable: HealableKeys) -> None:
        """Publish again where Redis does not hold them as they were."""
        if self._last is not None and not self._watch.is_whole(healable, self._last):
            _log.warning("the weights key does not hold the published weights: publishing them again")
            self.republish()

    def _try_publish(self, weights: Weights) -> int | None:
        event_log = self._fence.event_log
        identity = {"epoch": weights.epoch, "version": weights.version}
        self._reserved.cover(**identity)
        self.used = self.used.cover(**identity)
        if event_log.is_on:
            digest = arrays_digest(weights.arrays)
            event_log.write("publishing", **identity, update=weights.update, digest=digest)
        try:
            stored = self._fence.writes.publish(weights)
        except FencedError:
            event_log.write("refused", **identity)
            raise
        event_log.write("published" if stored is None else "refused", **identity)
        return stored
