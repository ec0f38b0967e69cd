"""A process that holds many actors, each in a thread of its own: `python -m ops.bench.scale.actors ORDER`.

Each actor is the product's own: it joins as `python -m workers` does, has its own connections, slot, boot and
registration, and runs the product's loop on an environment that only waits. Two things are shared, which
would cost a process each otherwise: one thread performs the watchdogs' duties of all actors, and the
environment is compared with the run's once. Actors leave and others join while the process runs.
"""

import json
import random
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

from dppo_redis.errors import DppoError, ExitStatus, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy  # noqa: F401 imported before the threads start
from dppo_redis.protocol.rollout import RolloutHeader
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.shutdown import StopRequest, kill_with_parent
from dppo_redis.store.client import Client, RetryLoop, connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutProducer, RunSnapshot
from dppo_redis.store.run_store import STOP, RunStore
from dppo_redis.store.sharing.shared_weights import SharedWeights
from dppo_redis.store.weight_store import WeightStore
from workers.build import build_collector
from workers.join import check_environment, refuse_living_holder, wait_for_description
from workers.loop import Actor, RunAccess
from workers.sampling.actor_stats import ActorStats
from workers.sampling.rollout_collector import RolloutCollector
from workers.sampling_rule import ElasticSampling
from workers.watchdog_duties import WatchdogDuties

_DUTIES_PERIOD_S = 0.25
_CHURN_PERIOD_S = 0.1
_END_S = 20.0  # for the actors to end once they were asked to


@dataclass(frozen=True)
class Order:
    """What a process of actors is told."""

    url: str
    run: str
    slots: tuple[int | None, ...]  # of the first actors; None: the next free one
    churn_per_s: float  # actors that leave and are replaced in a second
    seed: int
    parent: int  # this process ends when that one does


@dataclass
class Report:
    """What a process of actors has done; its last line of output."""

    joined: int = 0
    left: int = 0  # while the run went on
    pushes: int = 0
    ambiguous: int = 0
    cpu: list[tuple[float, float]] = field(default_factory=list)  # (monotonic time, computing time so far)
    failures: list[str] = field(default_factory=list)
    push: list[tuple[float, float]] = field(default_factory=list)  # (monotonic time at its end, seconds)
    fetch: list[tuple[float, float]] = field(default_factory=list)  # likewise, of weights


class TimedProducer(RolloutProducer):
    """The product's, with the time that each push took."""

    times: list[tuple[float, float]]

    def push(self, header: RolloutHeader, payload: bytes) -> RunSnapshot | None:
        """Send a rollout and read a snapshot."""
        began = time.monotonic()
        snapshot = super().push(header, payload)
        now = time.monotonic()
        self.times.append((now, now - began))
        return snapshot


class TimedWeights(SharedWeights):
    """The product's, with the time that each fetch took."""

    times: list[tuple[float, float]]

    def fetch(self) -> Weights | None:
        """The current publication."""
        began = time.monotonic()
        weights = super().fetch()
        now = time.monotonic()
        self.times.append((now, now - began))
        return weights


class PackedActor:
    """One actor of this process, and its thread."""

    def __init__(self, pack: "Pack", slot: int | None) -> None:
        self.stop = StopRequest()
        self.duties: WatchdogDuties | None = None  # None until it has joined, and once it has left
        self._pack = pack
        self._slot = slot
        self.thread = threading.Thread(target=self._live, daemon=True)

    def _live(self) -> None:
        name = f"dppo-actor-{self._pack.order.run}"
        clients = [connect(self._pack.order.url, name) for _ in range(2)]
        try:
            self._join_and_run(*clients)
        except StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 the end of a thread: the report names it
            self._pack.report.failures.append(f"{type(error).__name__}: {error}")
        finally:
            self.duties = None
            for client in clients:
                client.close()

    def _join_and_run(self, client: Client, of_watchdog: Client) -> None:
        """Join, sample and leave in the order in which `python -m workers` does it."""
        keys, retry = RunKeys(self._pack.order.run), RetryLoop(self.stop)
        store, registry = RunStore(client, keys), Registry(client, keys)
        description = wait_for_description(store, retry, self.stop)
        if description is None or retry.call("read control", store.control).state == STOP:
            return
        self._pack.check(description)
        if self._slot is not None:
            refuse_living_holder(registry, self._slot, retry, self.stop)
        slot, boot = retry.call("join", lambda: registry.join(self._slot))
        producer = TimedProducer(client, keys, self.stop)
        weights = TimedWeights(WeightStore(client, keys), f"{self._pack.order.url} {keys.run}", self.stop)
        producer.times, weights.times = self._pack.report.push, self._pack.report.fetch
        actor = Actor(
            description=description,
            boot_id=secrets.token_hex(8),
            stats=ActorStats(slot, boot),
            sampling_rule=ElasticSampling(boot),
            build_collector=partial(self._pack.build, description, slot),
            access=RunAccess(producer, weights, registry, store),
            retry=retry,
            stop=self.stop,
        )
        duties = self.duties = WatchdogDuties(actor, of_watchdog, keys)
        self._pack.report.joined += 1
        try:
            actor.run()
        finally:
            self.duties = None
            self._pack.report.pushes += actor.stats.pushes
            self._pack.report.ambiguous += producer.ambiguous
            duties.leave(None)
            weights.close()
            actor.close()


class Pack:
    """The actors of this process."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.report = Report()
        self._actors: list[PackedActor] = []
        self._lock = threading.Lock()
        self._is_checked = False
        self._random = random.Random(order.seed)
        self._left = 0.0  # actors that churn still owes, below 1

    def check(self, description: RunDescription) -> None:
        """Compare the environment with the run's: once, as all actors here have the same installation."""
        with self._lock:
            if not self._is_checked:
                check_environment(description.spec)
                self._is_checked = True

    def build(self, description: RunDescription, slot: int, boot: int, builds: int) -> RolloutCollector:
        """Environment and buffers of one actor. Building changes the process's state: one after another."""
        with self._lock:
            return build_collector(description, None, slot, boot, builds)

    def run(self, stop: StopRequest) -> Report:
        """Run until a signal, or until all actors have ended because the run has."""
        for slot in self.order.slots:
            self._start(slot)
        threading.Thread(target=self._perform_duties, daemon=True).start()
        while not stop.requested and any(actor.thread.is_alive() for actor in self._actors):
            self.report.cpu.append((time.monotonic(), time.process_time()))
            stop.sleep(_CHURN_PERIOD_S)
            self._replace(_CHURN_PERIOD_S)
        for actor in self._actors:
            actor.stop.request()
        deadline = time.monotonic() + _END_S
        for actor in self._actors:
            actor.thread.join(max(0.0, deadline - time.monotonic()))
        self.report.failures += ["an actor did not end" for a in self._actors if a.thread.is_alive()]
        return self.report

    def _start(self, slot: int | None) -> None:
        actor = PackedActor(self, slot)
        self._actors.append(actor)
        actor.thread.start()

    def _replace(self, seconds: float) -> None:
        """Have as many actors leave as are due, and start as many others from outside."""
        self._actors = [actor for actor in self._actors if actor.thread.is_alive()]
        self._left += seconds * self.order.churn_per_s
        while self._left >= 1.0:
            self._left -= 1.0
            sampling = [actor for actor in self._actors if actor.duties and not actor.stop.requested]
            if sampling:
                self._random.choice(sampling).stop.request()
                self.report.left += 1
                self._start(None)

    def _perform_duties(self) -> None:
        while True:
            began = time.monotonic()
            for actor in list(self._actors):
                duties = actor.duties
                if duties is not None:
                    with suppress(DppoError):  # another process took the slot: the actor itself says so
                        duties.beat()
            time.sleep(max(0.01, began + _DUTIES_PERIOD_S - time.monotonic()))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    values = json.loads((sys.argv[1:] if argv is None else list(argv))[0])
    order = Order(**{**values, "slots": tuple(values["slots"])})
    kill_with_parent(order.parent)
    report = Pack(order).run(StopRequest().install())
    print(json.dumps(asdict(report)), flush=True)
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
