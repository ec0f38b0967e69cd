"""Rollouts of real environments, for any space, network and mode of automatic reset."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_plain
from dppo_redis.policy.actor_critic import Actions, ActorCritic, Evaluated
from dppo_redis.policy.networks import Inputs
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import EnvValue, NetworkConfig
from dppo_redis.protocol.rollout import Rollout, validate
from dppo_redis.protocol.spec import EnvironmentSource, Spec
from dppo_redis.spaces.observations import Array, FloatArray
from learner.ppo.batch import stack
from learner.ppo.prepare import prepare
from tests.factories import CPU, copied, make_collector, make_model, make_policy, make_ppo, make_spec
from workers.envs import Environments

MODES = list(AutoresetMode)
SMALL = NetworkConfig(hidden=(8,))
LSTM = NetworkConfig(hidden=(8,), memory="lstm", memory_size=4)
GRU = NetworkConfig(hidden=(8,), memory="gru", memory_size=4)
LENGTHS: list[dict[str, EnvValue]] = [{"length": 3, "cut": True}, {"length": 4}, {"length": 1}]


def spec_of(env: EnvironmentSource | str, *, use_mask: bool = True, **values: Any) -> Spec:
    """The spec of a run in this environment of tests.envs; `values` as `make_spec` takes them."""
    source = EnvironmentSource(f"tests.envs:{env}-v0") if isinstance(env, str) else env
    spaces = inspect(source, use_mask=use_mask)
    values = {"rollout_steps": 7, "network": SMALL, **values}
    spec = make_spec(observation=spaces.observation, action=spaces.action, **values)
    return replace(spec, environment=source)


def vector_of(
    spec: Spec, mode: AutoresetMode, kwargs: Sequence[dict[str, EnvValue]] = LENGTHS
) -> SyncVectorEnv:
    """The environments of a run as `make_vector` builds them, in any mode."""
    sources = [replace(spec.environment, env_kwargs={**spec.environment.env_kwargs, **one}) for one in kwargs]
    builders = [partial(make_plain, source, spec.observation.masked) for source in sources]
    return SyncVectorEnv(builders, autoreset_mode=mode)


def lively_model(spec: Spec, seed: int = 0) -> ActorCritic:
    """A new network whose policy has clear preferences."""
    model = make_model(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or name == "log_std":
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        if spec.network.custom is None:
            model.policy[-1].get_parameter("weight").mul_(100)
    return model


class Seeing(ActingPolicy):
    """A policy that records its observations and its memory at every step."""

    shown: list[Array]
    memories: list[Array]

    def step(self, rows: Array, memory: Any, out: Any = None) -> Any:
        self.shown.append(rows.copy())
        self.memories.append(memory.copy())
        return super().step(rows, memory, out)


def seeing(policy: ActingPolicy) -> Seeing:
    result = Seeing(policy.weights, policy.spec)
    result.shown, result.memories = [], []
    return result


def play(
    spec: Spec,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
    *,
    policy: ActingPolicy | None = None,
    kwargs: Sequence[dict[str, EnvValue]] = LENGTHS,
    rollouts: int = 1,
) -> list[Rollout]:
    """Rollouts, one after another, of the same environments; each is valid."""
    environments = Environments(vector_of(spec, mode, kwargs), list(range(len(kwargs))))
    collector = make_collector(environments, spec)
    acting = policy or make_policy(spec, lively_model(spec))
    played = [copied(collector.collect(acting)) for _ in range(rollouts)]
    collector.close()
    for rollout in played:
        validate(rollout, spec)
    return played


class Spying(ActorCritic):
    """Records its inputs and the values that it returns."""

    def __init__(self, spec: Spec, model: ActorCritic) -> None:
        super().__init__(spec)
        self.load_state_dict(model.state_dict())
        self.read: list[Inputs] = []
        self.answered: list[FloatArray] = []

    def evaluate(self, inputs: Inputs, actions: Actions) -> Evaluated:
        result = super().evaluate(inputs, actions)
        self._keep(inputs, result.values)
        return result

    def values(self, inputs: Inputs) -> Tensor:
        values = super().values(inputs)
        self._keep(inputs, values)
        return values

    def _keep(self, inputs: Inputs, values: Tensor) -> None:
        self.read.append(inputs)
        self.answered.append(values.detach().numpy())


def read_by_learner(spec: Spec, model: ActorCritic, rollout: Rollout) -> Spying:
    """The learner's inputs before the first step: all rows, then last and final observations."""
    spying = Spying(spec, model)
    prepare(spying, spec, make_ppo(), None, stack([rollout]), CPU)
    assert len(spying.read) == 2
    return spying
