"""Publishes weights, spec, boot numbers and control to the fleet, and restores these keys if they are lost.

The loop's thread announces the spec, publishes weights and ends the run; each of these waits for Redis. The
keeper's thread restores keys and writes how the fleet is paced; an error of Redis ends its round. Both hold
the fence's lock, so that the keeper restores what the loop published last, under the next version.
"""

import logging
from collections.abc import Mapping

from dppo_redis.protocol.lineage import PublishedVersions
from dppo_redis.protocol.report_fields import to_fields
from dppo_redis.protocol.reports import Control
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.logs import RateLimit
from dppo_redis.spaces.observations import FloatArray
from dppo_redis.store.healable_keys import read_healable_keys, remove_foreign_types
from dppo_redis.store.run_store import ROLLOUT_STEPS, RUN, STOP, list_run
from learner.leadership.fence import Fence
from learner.leadership.lease import Lease
from learner.leadership.published_weights import PublishedWeights

_log = logging.getLogger("dppo")


class Publisher:
    """Writes the keys that actors and evaluator read, and remembers their values."""

    def __init__(
        self, fence: Fence, lease: Lease, weights: PublishedWeights, description: RunDescription
    ) -> None:
        self.boots: dict[str, int] = {}  # how often each slot's actor has started
        self._fence = fence
        self._lease = lease
        self._weights = weights
        self._description = description
        self._listing = RateLimit()
        self._state = RUN  # the last state of control in Redis, which the operator sets

    def restore(self, version: int, boots: Mapping[str, int]) -> None:
        """Continue from a checkpoint; called before the lease is taken."""
        self._weights.restore(version)
        self.boots = dict(boots)

    @property
    def version(self) -> int:
        """The version of the last published weights."""
        return self._weights.version

    @property
    def versions(self) -> PublishedVersions:
        """All versions that this learner and earlier ones may have published."""
        return self._weights.used

    # From the loop's thread

    def announce(self) -> None:
        """Write the spec and other missing keys, before the first weights are published."""
        self._lease.insist("publish the spec", self.heal)

    def publish(
        self, arrays: dict[str, FloatArray], update: int, trained_steps: int, settled_steps: int
    ) -> None:
        """Publish weights, named arrays of any shape, under the next version.

        Raises:
            FencedError: another learner leads.
        """

        def attempt() -> None:
            weights = Weights(
                epoch=self._fence.epoch,
                version=self.version + 1,
                update=update,
                trained_steps=trained_steps,
                settled_steps=settled_steps,
                spec=self._description.digest,
                arrays=arrays,
            )
            self._weights.publish(weights)

        self._lease.insist("publish weights", attempt)

    def end_run(self, reason: str, target_step: int | None) -> None:
        """Ask the whole fleet to stop. Works even if the server's memory is full."""
        fields = to_fields(Control(STOP, reason, target_step))
        self._lease.insist("end the run", lambda: self._write_control(fields))

    # From the keeper's thread

    def remove_foreign_types(self) -> None:
        """Remove keys that another client overwrote with another type, so that `heal` can restore them."""
        for key in remove_foreign_types(self._fence.client, self._fence.keys):
            _log.warning("removed %s: another program had overwritten it with another type", key)

    def heal(self) -> None:
        """Restore keys that were deleted, damaged or overwritten."""
        with self._fence.lock:
            healable = read_healable_keys(self._fence.client, self._fence.keys)
            self._weights.heal(healable)
            text = self._description.to_text()
            if healable.spec != text:
                self._fence.writes.write_string(self._fence.epoch, self._fence.keys.spec, text)
            self._heal_boots(healable.boots)
            if healable.state is None:
                self._write_control({"state": self._state})
            self._state = healable.state or self._state
            if self._listing.due():
                list_run(self._fence.client, self._fence.keys.run)

    def write_pace(self, backlog_high: int, rollout_steps: int) -> None:
        """Write the backlog at which actors wait and the length of their rollouts, for all actors."""
        with self._fence.lock:
            self._write_control({"backlog_high": backlog_high, ROLLOUT_STEPS: rollout_steps})

    def _heal_boots(self, stored: Mapping[str, int]) -> None:
        """Restore boot numbers that fell, or a restarted actor would play old episodes again."""
        merged = {name: max(stored.get(name, 0), self.boots.get(name, 0)) for name in {*stored, *self.boots}}
        fallen = {name: boot for name, boot in merged.items() if boot != stored.get(name)}
        if fallen:  # write only these: an actor may be incrementing another one now
            self._fence.writes.write_fields(self._fence.epoch, self._fence.keys.boots, fallen)
        self.boots = merged

    def _write_control(self, fields: Mapping[str, str | int | float]) -> None:
        self._fence.writes.write_fields(self._fence.epoch, self._fence.keys.control, fields)
