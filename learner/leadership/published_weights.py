"""Publishes weights, remembers the last ones, and publishes them again where Redis has lost them.

Versions never fall and none is used twice. Callers of every method but `restore` and `begin` hold the fence's
lock: the publisher (the loop's thread publishes, the keeper's thread heals), and a renewal that took a new
epoch (in either thread). No method waits until Redis is back.
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
    """The last published weights, their version and update, and all versions used so far."""

    def __init__(self, fence: Fence, reserved: ReservedVersions) -> None:
        self.version = 0
        self.update = 0  # no rollout of this epoch comes from a later update
        self.used = PublishedVersions()  # frozen, replaced before each publication: any thread may read it
        self._fence = fence
        self._reserved = reserved
        self._last: Weights | None = None
        self._watch = WeightsWatch(fence.client, fence.keys)

    def restore(self, version: int) -> None:
        """Continue from a checkpoint; called before `begin`."""
        self.version = version

    def begin(self, update: int) -> None:
        """Begin an epoch at `update`, with versions above all that an earlier learner may have used."""
        self.update = update
        self.version = max(self.version, self._reserved.read().version)

    def publish(self, weights: Weights) -> None:
        """Publish `weights`; if Redis holds a higher version, publish them above that one."""
        stored = self._try_publish(weights)
        if stored is not None:  # a higher version from before a loss or a restore of the server's data
            self.used = self.used.beyond(stored)
            weights = replace(weights, version=stored + 1)
            self._try_publish(weights)
        self.version = weights.version
        self.update = weights.update
        self._last = weights

    def republish(self) -> None:
        """Publish the last weights again, under the present epoch and the next version."""
        if self._last is not None:
            self.publish(replace(self._last, epoch=self._fence.epoch, version=self.version + 1))

    def heal(self, healable: HealableKeys) -> None:
        """Publish the last weights again if Redis does not hold them unchanged."""
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
