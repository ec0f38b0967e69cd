"""What a leader publishes to its fleet (weights, spec, boot numbers, control), and the healing of it.

The loop's thread announces the spec, publishes weights and ends the run; each of these waits for Redis. The
keeper heals and writes the backlog limit; an error of Redis ends its round. All of them hold the fence's
lock, so that the keeper puts back what the loop published last, under the next version.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from dppo_redis.errors import FencedError
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.event_log import arrays_digest
from dppo_redis.spaces.observations import FloatArray
from dppo_redis.store.run_store import RUN, STOP, read_vitals, remove_foreign_types
from learner.leadership.fence import Fence
from learner.leadership.reserved_versions import ReservedVersions
from learner.leadership.weights_watch import WeightsWatch

_log = logging.getLogger("dppo")


class Publisher:
    """Remembers what was published last; versions never fall and none is used twice."""

    def __init__(self, fence: Fence, description: RunDescription, reserved: ReservedVersions) -> None:
        self.version = 0
        self.update = 0  # of the weights published last: no rollout of this epoch is beyond it
        self.boots: dict[str, int] = {}  # how often each slot's actor has started
        self._fence = fence
        self._description = description
        self._reserved = reserved
        self._last: Weights | None = None
        self._watch = WeightsWatch(fence.client, fence.keys)
        self._state = RUN  # what the operator wanted when it was last seen

    def restore(self, version: int, boots: Mapping[str, int]) -> None:
        """Go on from a checkpoint; called before `begin`."""
        self.version = version
        self.boots = dict(boots)

    def begin(self, update: int) -> None:
        """The lease was taken at `update`: go on above the versions that a predecessor may have used."""
        self.update = update
        self.version = max(self.version, self._reserved.read().version)

    # From the loop's thread

    def announce(self) -> None:
        """Write the spec and what else is missing, before there are weights to go with it."""
        self._fence.insist("publish the spec", self.heal)

    def publish(self, arrays: dict[str, FloatArray], update: int, trained_steps: int, env_steps: int) -> None:
        """Publish weights under the next version."""

        def attempt() -> None:
            weights = Weights(
                epoch=self._fence.epoch,
                version=self.version + 1,
                update=update,
                trained_steps=trained_steps,
                env_steps=env_steps,
                spec=self._description.digest,
                arrays=arrays,
            )
            self._publish(weights)

        self._fence.insist("publish weights", attempt)

    def end_run(self, reason: str, target_step: int | None) -> None:
        """Ask the whole fleet to stop; works on a full server, too."""
        step = "" if target_step is None else target_step
        fields = {"state": STOP, "reason": reason, "target_step": step}
        self._fence.insist("end the run", lambda: self._write_control(fields))

    # From the keeper's thread

    def remove_foreign_types(self) -> None:
        """Remove keys that somebody overwrote with another type, so that they can be put back."""
        for key in remove_foreign_types(self._fence.client, self._fence.keys):
            _log.warning("removed %s: it was overwritten with another type", key)

    def heal(self) -> None:
        """Put back keys that were deleted, damaged or overwritten."""
        with self._fence.lock:
            vitals = read_vitals(self._fence.client, self._fence.keys)
            if self._last is not None and not self._watch.is_whole(vitals, self._last):
                _log.warning("the weights key does not hold what was published; publishing again")
                self.republish()
            text = self._description.to_text()
            if vitals.spec != text:
                self._fence.writes.write_string(self._fence.epoch, self._fence.keys.spec, text)
            self._heal_boots(vitals.boots)
            if vitals.state is None:
                self._write_control({"state": self._state})
            self._state = vitals.state or self._state

    def write_backlog_high(self, high: int) -> None:
        """Where actors wait."""
        with self._fence.lock:
            self._write_control({"backlog_high": high})

    # From both, under the lock

    def republish(self) -> None:
        """Publish the last weights again, under the present epoch and the next version."""
        if self._last is not None:
            self._publish(replace(self._last, epoch=self._fence.epoch, version=self.version + 1))

    def _publish(self, weights: Weights) -> None:
        stored = self._try_publish(weights)
        if stored is not None:  # a version above ours, of a lost or restored past: go above it
            weights = replace(weights, version=stored + 1)
            self._try_publish(weights)
        self.version = weights.version
        self.update = weights.update
        self._last = weights

    def _try_publish(self, weights: Weights) -> int | None:
        history = self._fence.history
        identity = {"epoch": weights.epoch, "version": weights.version}
        self._reserved.cover(**identity)
        if history.is_on:
            digest = arrays_digest(weights.arrays)
            history.write("publishing", **identity, update=weights.update, digest=digest)
        try:
            stored = self._fence.writes.publish(weights)
        except FencedError:
            history.write("refused", **identity)
            raise
        history.write("published" if stored is None else "refused", **identity)
        return stored

    def _heal_boots(self, stored: Mapping[str, int]) -> None:
        """Boot numbers never fall, or a restarted actor would play old episodes again."""
        merged = {name: max(stored.get(name, 0), self.boots.get(name, 0)) for name in {*stored, *self.boots}}
        fallen = {name: boot for name, boot in merged.items() if boot != stored.get(name)}
        if fallen:  # only these: an actor may be counting up another one now
            self._fence.writes.write_fields(self._fence.epoch, self._fence.keys.boots, fallen)
        self.boots = merged

    def _write_control(self, fields: Mapping[str, str | int]) -> None:
        self._fence.writes.write_fields(self._fence.epoch, self._fence.keys.control, fields)
