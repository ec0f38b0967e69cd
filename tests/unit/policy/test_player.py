"""A player of one environment acts as the actors do, for policies with and without memory."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Dict

from dppo_redis.environments.make import make_single, make_vector
from dppo_redis.environments.masks import MASK
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.player import Player
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.gymnasium_spaces import MaskSpace, describe_actions, describe_observations
from tests.factories import make_policy, make_spec, scattered_model, source
from workers.envs import Environments

CASES = {
    "mask": ("tests.envs:Masked-v0", {}),
    "lstm": ("tests.envs:Recall-v0", {"network": NetworkConfig(hidden=(8,), memory="lstm", memory_size=5)}),
    "frames": ("tests.envs:Named-v0", {"frame_stack": 3}),
    "reused buffer and gru": (
        "tests.envs:Reusing-v0",
        {"frame_stack": 2, "network": NetworkConfig(hidden=(8,), memory="gru", memory_size=5)},
    ),
    "composite action": ("tests.envs:Parts-v0", {}),
}
STEPS = 17  # several episodes


def spec_of(env_id: str, **parts: Any) -> Spec:
    with closing(make_single(source(env_id))) as env:
        _, infos = env.reset(seed=0)
        space, action = env.observation_space, describe_actions(env.action_space)
    if MASK in infos:
        space = Dict({"observation": space, MASK: MaskSpace(action.choices)})
    return make_spec(env_id=env_id, observation=describe_observations(space), action=action, **parts)


def as_actors_act(policy: ActingPolicy, sampling: np.random.Generator | None) -> list[Any]:
    spec = policy.spec
    environments = Environments(_vector(spec), [5])
    state = PolicyState(spec, environments.reset())
    chosen = []
    for _ in range(STEPS):
        outputs = state.outputs(policy)
        if sampling is None:
            actions = policy.greedy(outputs)
        else:
            actions = policy.sample(outputs, policy.noise(sampling, 1, 1)[0])
        step = environments.step(policy.action.to_environment(actions))
        state.observe(step.observations, step.begins)
        chosen.append(actions)
    return [policy.action.to_environment(actions) for actions in chosen]


def as_a_player_acts(player: Player) -> list[Any]:
    vector = _vector(player.policy.spec)
    env = vector.envs[0]
    observation, _ = env.reset(seed=5)
    chosen = []
    for _ in range(STEPS):
        action = player.act(observation)
        chosen.append(action)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            player.begin()
            observation, _ = env.reset()
    return chosen


def _vector(spec: Spec) -> Any:
    return make_vector(spec.environment, 1, "sync", masked=spec.observation.masked)


def _flat(action: Any) -> list[Any]:
    """All numbers of an action, in their order."""
    if isinstance(action, dict):
        return [x for part in action.values() for x in _flat(part)]
    if isinstance(action, tuple):
        return [x for part in action for x in _flat(part)]
    return list(np.ravel(action).tolist())


@pytest.mark.parametrize("stochastic", [False, True], ids=["greedy", "stochastic"])
@pytest.mark.parametrize(("env_id", "parts"), CASES.values(), ids=CASES)
def test_a_player_chooses_what_an_actor_would(env_id: str, parts: dict[str, Any], stochastic: bool) -> None:
    spec = spec_of(env_id, **parts)
    policy = make_policy(spec, scattered_model(spec))
    generators = [np.random.default_rng(3) if stochastic else None for _ in range(2)]
    expected = as_actors_act(policy, generators[0])
    played = as_a_player_acts(Player(policy, generators[1]))
    assert [_flat(action) for action in played] == [_flat(action) for action in expected]
