"""Fleets in lock-step mode, in threads, and the serial baseline that they must equal."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import tomli_w
import torch

from dppo_redis.errors import ExitStatus
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import EnvValue, RunConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.run_plan import plan
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from learner.__main__ import _serve as serve_learner
from learner.build import build_ppo
from learner.ppo.batch import stack
from ops.serial_sampling import make_sampling
from tests.conftest import RedisServer, wait_until
from tests.factories import make_config, spaces_of
from tests.integration.actor_side import PATIENCE_S, RunningActor, running_actor
from tests.integration.learner_side import in_background
from workers.build import build_collector
from workers.sampling.rollout_collector import RolloutCollector

SEGMENT = 4
UPDATES = 10
DEADLINE_S = 40.0
State = dict[str, torch.Tensor]


def config_of(
    updates: int,
    *,
    actors: int = 3,
    rollouts: int = 1,
    env_id: str = "CartPole-v1",
    env_kwargs: dict[str, EnvValue] | None = None,
    network: dict[str, Any] | None = None,
    frame_stack: int = 1,
) -> RunConfig:
    """Two environments in each actor and rollouts of 16 steps, `rollouts` for each update."""
    batch_steps = 16 * 2 * actors * rollouts
    return make_config(
        env_id=env_id,
        env_kwargs=env_kwargs or {},
        frame_stack=frame_stack,
        lock_step=True,
        segment_updates=SEGMENT,
        actors=actors,
        envs_per_actor=2,
        rollout_steps=16,
        vectorization="sync",
        total_steps=batch_steps * updates,
        network={"hidden": [8], **(network or {})},
        ppo={
            "batch_steps": batch_steps,
            "minibatch_size": 32,
            "update_epochs": 2,
            "normalise_observations": True,
            "normalise_returns": True,
        },
        checkpoint={"keep": 3},
    )


def describe(config: RunConfig) -> RunDescription:
    return plan(config, spaces_of(config), serial=False).description


def serial_state(config: RunConfig, updates: int) -> State:
    """Network and optimiser after `updates` updates in one process, without Redis."""
    torch.set_num_threads(1)
    description = describe(config)
    ppo = build_ppo(config, description, config.ppo.update_epochs or 0)
    sampling = make_sampling(config, description)
    steps = 0
    for update in range(updates):
        weights = Weights(1, 1, update, steps, steps, description.digest, ppo.acting_arrays())
        batch = stack(sampling.collect(ActingPolicy(weights, description.spec), StopRequest()))
        ppo.update(batch, steps / config.total_steps)
        steps += batch.steps
    sampling.close()
    return flat(ppo.model.state_dict(), ppo.optimizer.state_dict())


def fleet_state(directory: Path) -> State:
    """The same of the newest checkpoint."""
    file = max((directory / "checkpoints").glob("checkpoint-*.pt"))
    values = cast(dict[str, Any], torch.load(file, weights_only=True))
    return flat(values["model"], values["optimizer"])


def flat(model: State, optimizer: dict[str, Any]) -> State:
    moments = {f"{i}.{name}": x for i, state in optimizer["state"].items() for name, x in state.items()}
    return {**model, **moments}


def assert_bit_equal(mine: State, theirs: State) -> None:
    assert mine.keys() == theirs.keys()
    different = [name for name, tensor in mine.items() if not torch.equal(tensor, theirs[name])]
    assert different == []


@dataclass
class Fleet:
    """A learner in a thread, and actors that come and go."""

    server: RedisServer
    client: Client
    keys: RunKeys
    directory: Path
    config: RunConfig
    description: RunDescription = field(init=False)

    def __post_init__(self) -> None:
        self.description = describe(self.config)

    @contextmanager
    def learner(self) -> Iterator[Callable[[], ExitStatus]]:
        """Runs until its goal, or until the block ends; the value waits for its end."""
        values = self.config.model_dump(exclude_none=True, mode="json")
        (self.directory / "config.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
        argv = ["--run", self.keys.run, "--run-dir", str(self.directory), "--redis", self.server.url]
        stop = StopRequest()
        with in_background(lambda: serve_learner(argv, stop), stop) as thread:
            yield lambda: thread.result(DEADLINE_S)

    @contextmanager
    def actors(self, *slots: int, late_s: float = 0.0) -> Iterator[list[RunningActor]]:
        """Actors of these slots; each rollout of slot 0 comes `late_s` later."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    running_actor(
                        self.server.url,
                        self.keys,
                        partial(self._build, slot, late_s if slot == 0 else 0.0),
                        self.description,
                        slot,
                    )
                )
                for slot in slots
            ]

    def _build(self, slot: int, late_s: float, boot: int, builds: int) -> RolloutCollector:
        collector = build_collector(self.description, None, slot, boot, builds)
        return cast(RolloutCollector, Late(collector, late_s)) if late_s else collector

    def train(self, *slots: int, late_s: float = 0.0) -> State:
        """Train to the end of the budget with these actors, started in this order."""
        with self.learner() as end, self.actors(*slots, late_s=late_s):
            assert end() is ExitStatus.DONE
        return fleet_state(self.directory)

    @property
    def update(self) -> int:
        return int(cast(bytes | None, self.client.hget(self.keys.weights, "update")) or 0)

    def reaches(self, update: int) -> None:
        wait_until(lambda: self.update >= update, DEADLINE_S, f"update {update}")


@dataclass
class Late:
    """A collector that hands its rollouts over late."""

    collector: RolloutCollector
    late_s: float

    def collect(self, policy: ActingPolicy, stop: StopRequest) -> Rollout:
        rollout = self.collector.collect(policy, stop)
        time.sleep(self.late_s)
        return rollout

    def close(self) -> None:
        self.collector.close()

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of the collector."""
        return getattr(self.collector, name)


def have_pushed(actors: Sequence[RunningActor]) -> None:
    wait_until(lambda: all(actor.pushes for actor in actors), DEADLINE_S, "each has pushed")


def has_pushed(actor: RunningActor, count: int) -> None:
    wait_until(lambda: actor.pushes >= count, PATIENCE_S, f"{count} rollouts are pushed")
