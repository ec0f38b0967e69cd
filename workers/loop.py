"""The actor's loop: wait for room in the backlog, refresh the policy, collect, push, renew the registration.

The actor sends facts only. The learner decides which rollouts are stale or broken.
"""

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, StoppedError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.rollout import Rollout, RolloutHeader, may_be_short, validate
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.service.event_log import NO_EVENT_LOG, EventLog, arrays_digest
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import RetryLoop
from dppo_redis.store.registry import BEAT_PERIOD_S, Registry
from dppo_redis.store.rollout_stream import RolloutProducer, RunSnapshot
from dppo_redis.store.run_store import PAUSE, STOP, RunStore
from dppo_redis.store.sharing.shared_weights import SharedWeights
from dppo_redis.store.weight_store import WeightStore
from workers.collect import with_progress
from workers.failures import FailureCount
from workers.join import check_run
from workers.sampling.actor_stats import ActorStats
from workers.sampling.free_collector import FreeCollector
from workers.sampling.pauses import FIRST_PAUSE_S, JITTER, LONGEST_PAUSE_S, AskedRarely, longest_pause
from workers.sampling.rollout_collector import RolloutCollector
from workers.sampling_rule import SamplingRule

_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class RunAccess:
    """The keys of its run that an actor reads and writes."""

    producer: RolloutProducer
    weights: WeightStore | SharedWeights
    registry: Registry
    store: RunStore


@dataclass
class Actor:
    """One actor: its parts, which `__main__.py` builds, and the loop that uses them."""

    description: RunDescription
    boot_id: str  # random, 16 hex digits
    stats: ActorStats
    sampling_rule: SamplingRule
    build_collector: Callable[[int, int], RolloutCollector]  # of (boot, builds), which determine its seeds
    access: RunAccess
    retry: RetryLoop
    stop: StopRequest
    seq: int = 0
    collector: RolloutCollector | None = None
    policy: ActingPolicy | None = None
    failure_count: FailureCount = field(default_factory=FailureCount)
    next_beat: float = 0.0
    rate_limit: RateLimit = field(default_factory=RateLimit)
    event_log: EventLog = NO_EVENT_LOG

    def __post_init__(self) -> None:
        for recurrence in (self.retry.recurrence, self.access.producer.recurrence):
            recurrence.report = self._report_recurring

    def _report_recurring(self, text: str) -> None:
        """Note an error of Redis that recurs; the watchdog may be able to report it by its connection."""
        self.stats.last_error = text

    def run(self) -> None:
        """Sample until the run ends or a stop is requested; a partial rollout is dropped.

        Raises:
            ConfigurationError: the run is no longer the one that was joined, or has another custom network.
        """
        policy: ActingPolicy | None = None
        snapshot = self._read_snapshot()
        while True:
            if policy is None or not self._has_open_rollout():
                snapshot = self._wait_for_turn(snapshot, policy)
                if self.stop.requested or snapshot.state == STOP:
                    return
                policy = self.policy = self._refresh(policy, snapshot)
                if policy is None or not self._take_up(policy):
                    snapshot = self._read_snapshot()
                    continue
            try:
                rollout, its_policy = self._collect(policy, snapshot)
            except StoppedError:
                return
            except EnvironmentBrokenError as error:
                self._recover(error)
                snapshot = self._read_snapshot()
                continue
            self.failure_count.sampled()
            snapshot = self._push(rollout, its_policy) or self._read_snapshot()
            policy = self.policy

    def _take_up(self, policy: ActingPolicy) -> bool:
        """Send the rollouts again that the learner misses; returns whether a rollout is due."""
        for header, payload in self.sampling_rule.take_up(policy.weights):
            self.access.producer.push(header, payload)
        return self.sampling_rule.is_due()

    def _has_open_rollout(self) -> bool:
        """Whether a rollout is open already, so that there is nothing to wait for."""
        return isinstance(self.collector, FreeCollector) and self.collector.is_open

    def _policy_of_next(self) -> ActingPolicy | None:
        """The policy of one more rollout, if it may be opened now; the newest weights are fetched for it."""
        snapshot = self._read_snapshot()
        if snapshot.state == STOP:
            self.stop.request()
        if snapshot.state in (STOP, PAUSE) or not self.sampling_rule.may_start(snapshot):
            return None
        self.set_rollout_steps(snapshot.rollout_steps)
        self.policy = self._refresh(self.policy, snapshot)
        return self.policy

    def _collect(self, policy: ActingPolicy, snapshot: RunSnapshot) -> tuple[Rollout, ActingPolicy]:
        """The next rollout, and the policy that sampled it."""
        collector = self._ready_collector()
        self.set_rollout_steps(snapshot.rollout_steps)
        self.stats.rollout_began = began = time.monotonic()
        try:
            if isinstance(collector, FreeCollector):
                question = AskedRarely(self._policy_of_next)
                rollout = collector.collect(policy, self.stop, question)
                policy = collector.policy or policy
            else:
                rollout = collector.collect(policy, self.stop)
        finally:
            self.stats.rollout_began = None
        self.stats.rollout_s = time.monotonic() - began
        if self.stats.pushes == 0:  # tells the learner when sampling began
            self.retry.call("register", lambda: self.beat(self.access.registry))
        return rollout, policy

    def set_rollout_steps(self, steps: int | None) -> None:
        """Set the length of rollouts for a fleet of the present size; it also limits the running rollout."""
        collector, spec = self.collector, self.description.spec
        if collector is not None and self.description.join.lock_step is None and may_be_short(spec):
            collector.wanted_steps = min(steps or spec.rollout_steps, spec.rollout_steps)

    def _ready_collector(self) -> RolloutCollector:
        if self.sampling_rule.must_rebuild():
            self.close()
        if self.collector is None:
            self.collector = self.build_collector(*self.sampling_rule.build(self.failure_count.failures))
        return self.collector

    def close(self) -> None:
        """Free the environments."""
        if self.collector is not None:
            collector, self.collector = self.collector, None
            collector.close()

    def _read_snapshot(self) -> RunSnapshot:
        return self.retry.call("reach Redis", self.access.producer.read_pacing)

    def _wait_for_turn(self, snapshot: RunSnapshot, policy: ActingPolicy | None) -> RunSnapshot:
        """Read snapshots, with growing random pauses, until a rollout may start."""
        pause_s, began = FIRST_PAUSE_S, time.monotonic()
        while not self.stop.requested and snapshot.state != STOP:
            self._beat()
            no_weights = policy is None and snapshot.weights is None
            if self.sampling_rule.may_start(snapshot) and snapshot.state != PAUSE and not no_weights:
                break
            started = time.monotonic()
            self.stop.sleep(JITTER.uniform(0.5, 1.5) * pause_s)
            asked = time.monotonic()
            snapshot = self._read_snapshot()
            queued_s = self.stats.add_read(time.monotonic() - asked)
            pause_s = min(1.5 * pause_s, longest_pause(self.stats.rollout_s, started - began, queued_s))
            self.stats.waited_s += time.monotonic() - started
        return snapshot

    def _refresh(self, policy: ActingPolicy | None, snapshot: RunSnapshot) -> ActingPolicy | None:
        """The current policy; the old one if there is no new one or the new one is damaged."""
        if snapshot.weights is None or (policy and snapshot.weights == policy.weights.id):
            return policy
        try:
            weights = self.retry.call("fetch weights", self.access.weights.fetch)
            if weights is None:
                return policy
            taken = ActingPolicy(weights, self.description.spec)
        except WireError as error:
            check_run(error, self.description, self.access.store, self.retry)
            custom = self.description.spec.network.custom
            if policy is None and custom and error.reason == "shape":
                # The spec holds the name of the class and not its content.
                raise ConfigurationError(
                    f"network.custom: {custom} on this machine is not the learner's: {error}"
                ) from error
            self.stats.last_error = str(error)
            if self.rate_limit.due():
                _log.warning("keeping the current policy: %s", error)
            self.stop.sleep(LONGEST_PAUSE_S)
            return policy
        if self.event_log.is_on:
            digest = arrays_digest(weights.arrays)
            self.event_log.write("read", epoch=weights.epoch, version=weights.version, digest=digest)
        return taken

    def _push(self, rollout: Rollout, policy: ActingPolicy) -> RunSnapshot | None:
        """Send a rollout and return a snapshot; None if the rollout was dropped or no snapshot was read."""
        try:
            validate(rollout, self.description.spec)
            payload = encode_rollout(rollout)
        except WireError as error:
            self.stats.last_error = str(error)
            self.failure_count.refuse(error)
            return None
        self.failure_count.used()
        self.seq += 1
        weights = policy.weights
        header = RolloutHeader(
            actor=self.stats.slot,
            boot=self.boot_id,
            seq=self.seq,
            epoch=weights.epoch,
            version=weights.version,
            update=weights.update,
            steps=rollout.steps,
            crc=checksum(payload),
            spec=self.description.digest,
        )
        snapshot = self.access.producer.push(header, payload)
        self.sampling_rule.sent(header, payload)
        self.stats.pushes += 1
        self.stats.last_push = time.time()
        self.stats.steps += rollout.steps
        return snapshot

    def _beat(self) -> None:
        if time.monotonic() >= self.next_beat:
            self.retry.call("register", lambda: self.beat(self.access.registry))

    def beat(self, registry: Registry) -> None:
        """Renew this actor's registration, and report what it does.

        Raises:
            ConfigurationError: another process, which has started later, has registered for this slot.
        """
        self.next_beat = time.monotonic() + BEAT_PERIOD_S
        report = self.stats.report(self.policy, self.access.producer, self.failure_count.refused)
        collector, began = self.collector, self.stats.rollout_began
        if collector is not None:
            rollout_s = self.stats.rollout_s if began is None else time.monotonic() - began
            report = with_progress(report, collector, rollout_s)
        later = registry.beat(self.stats.slot, report)
        if later and self.stats.is_registered:  # else a dead process left it
            raise ConfigurationError(
                f"slot {self.stats.slot} was taken by a later actor, {later}, which continues"
            )
        self.stats.is_registered = True

    def _recover(self, error: EnvironmentBrokenError) -> None:
        """Close broken environments and pause; raises once they have failed too often."""
        self.failure_count.count_failure(error)
        self.stats.last_error = str(error)
        service, text = f"actor {self.stats.slot}", "".join(traceback.format_exception(error))
        self.retry.call("report the error", lambda: self.access.store.append_error(service, text))
        self.close()
        self.stop.sleep(self.failure_count.pause_s(error))
