"""An actor in a thread, put together as `python -m workers` does, on environments of tests.envs."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from dppo_redis.protocol.config import EnvValue
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.run_store import RunStore
from dppo_redis.store.weight_store import WeightStore
from tests.conftest import opened, wait_until
from tests.factories import TERMINATING, make_collector, make_description, make_environments
from tests.integration.learner_side import SPEC, in_background
from workers.loop import Actor, RunAccess
from workers.sampling.actor_stats import ActorStats
from workers.sampling.rollout_collector import RolloutCollector
from workers.sampling_rule import ElasticSampling, LockStepSampling

SLOT = 3
BOOT = "00000000000000a1"
PATIENCE_S = 5.0


def environments_of(env_id: str, **kwargs: EnvValue) -> Callable[[int, int], RolloutCollector]:
    """A function that builds two such environments at each call."""
    return lambda _boot, builds: make_collector(
        make_environments(env_id, [kwargs, kwargs]), SPEC, seed=builds
    )


SOUND = environments_of(TERMINATING)


def make_actor(
    client: Client,
    keys: RunKeys,
    stop: StopRequest,
    build: Callable[[int, int], RolloutCollector] = SOUND,
    description: RunDescription | None = None,
    slot: int = SLOT,
) -> Actor:
    description = description or make_description(SPEC)
    plan = description.join.lock_step
    return Actor(
        description=description,
        boot_id=secrets.token_hex(8) if plan else BOOT,
        stats=ActorStats(slot, boot=1),
        sampling_rule=LockStepSampling(plan) if plan else ElasticSampling(boot=1),
        build_collector=build,
        access=RunAccess(
            RolloutProducer(client, keys, stop),
            WeightStore(client, keys),
            Registry(client, keys),
            RunStore(client, keys),
        ),
        retry=RetryLoop(stop),
        stop=stop,
    )


@dataclass
class RunningActor:
    """The actor and its thread."""

    actor: Actor
    thread: Future[None]
    stop: StopRequest

    @property
    def pushes(self) -> int:
        """Rollouts pushed so far; raises the error that ended the actor, if there is one."""
        if self.thread.done():
            self.thread.result()
        return self.actor.stats.pushes

    def wait_for_pushes(self, more: int) -> None:
        target = self.pushes + more
        wait_until(lambda: self.pushes >= target, PATIENCE_S, f"{more} more rollouts are pushed")

    def wait_until_it_waits(self) -> None:
        """Wait until the actor has waited for room twice in a row."""
        self._wait_for_a_wait()
        self._wait_for_a_wait()

    def _wait_for_a_wait(self) -> None:
        before = self.actor.stats.waited_s
        wait_until(lambda: self.alive and self.actor.stats.waited_s > before, PATIENCE_S, "the actor waits")

    @property
    def alive(self) -> bool:
        """True; raises the error that ended the actor, if there is one."""
        return self.pushes >= 0

    def wait_for_the_end(self) -> None:
        self.thread.result(PATIENCE_S)


@contextmanager
def running_actor(
    url: str,
    keys: RunKeys,
    build: Callable[[int, int], RolloutCollector] = SOUND,
    description: RunDescription | None = None,
    slot: int = SLOT,
) -> Iterator[RunningActor]:
    """An actor that runs until the block ends, on a connection of its own."""
    stop = StopRequest()
    with opened(url, "actor") as client:
        actor = make_actor(client, keys, stop, build, description, slot)
        with in_background(actor.run, stop) as thread:
            yield RunningActor(actor, thread, stop)
