"""Actions in the policy, in the environment and in the rollout."""

import math

import numpy as np
import pytest
import torch

from dppo_redis.environments.inspect import inspect
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.protocol.rollout import Rollout, validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.observations import Array
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate
from tests.envs.actions import Strict
from tests.factories import (
    CPU,
    actions_of,
    constant_model,
    inputs_of,
    make_collector,
    make_environments,
    make_policy,
    make_ppo,
    make_spec,
    make_vector,
    scattered_model,
    source,
)
from workers.envs import Environments


def spec_of(env_id: str, rollout_steps: int) -> Spec:
    spaces = inspect(source(env_id))
    return make_spec(
        env_id=env_id, action=spaces.action, observation=spaces.observation, rollout_steps=rollout_steps
    )


def play(spec: Spec, model: ActorCritic, count: int = 2) -> tuple[Rollout, Array]:
    """A rollout, and the actions [T, N, ...] that its environments received."""
    vector = make_vector(spec.environment.env_id, [{}] * count)
    collector = make_collector(Environments(vector, list(range(count))), spec)
    rollout = collector.collect(make_policy(spec, model))
    received = []
    for env in vector.envs:
        assert isinstance(env.unwrapped, Strict)
        received.append(np.array(env.unwrapped.received))
    return rollout, np.stack(received, axis=1)


def log_probs_of_learner(model: ActorCritic, spec: Spec, rollout: Rollout) -> Array:
    rows = rollout.rewards.size
    inputs = inputs_of(spec, rollout.observations.reshape(rows, *spec.observation.row_shape))
    actions = actions_of(spec, rollout.actions.reshape(rows, *spec.action.row_shape))
    with torch.no_grad():
        log_probs = model.evaluate(inputs, actions).log_probs
    result: Array = log_probs.numpy().reshape(rollout.rewards.shape)
    return result


# Known failure KF-PPO-05.
def test_the_environment_gets_the_clipped_action_and_the_rollout_holds_the_raw_one() -> None:
    spec = spec_of("tests.envs:BoundedRecorder-v0", rollout_steps=32)
    model = constant_model(spec, [3, 3], log_std=math.log(0.1))
    rollout, received = play(spec, model)
    validate(rollout, spec)
    np.testing.assert_array_equal(received, np.ones((32, 2, 2)))
    assert rollout.actions.min() > 2
    assert rollout.actions.mean() == pytest.approx(3, abs=0.05)
    ratio = np.exp(log_probs_of_learner(model, spec, rollout) - rollout.log_probs)
    assert np.abs(ratio - 1).max() < 1e-4


# Known failure KF-PPO-06.
def test_a_discrete_space_that_starts_below_zero_is_played_in_its_own_numbers() -> None:
    spec = spec_of("tests.envs:ShiftedDiscrete-v0", rollout_steps=200)
    model = scattered_model(spec)
    rollout, received = play(spec, model)
    validate(rollout, spec)
    assert set(received.reshape(-1).tolist()) == {-1, 0, 1}
    np.testing.assert_array_equal(received, rollout.actions - 1)
    np.testing.assert_allclose(log_probs_of_learner(model, spec, rollout), rollout.log_probs, atol=1e-4)


# Known failure KF-PPO-09.
def test_infinite_half_infinite_and_equal_bounds_are_met_for_a_thousand_steps() -> None:
    spec = spec_of("tests.envs:OpenBounds-v0", rollout_steps=500)
    model = scattered_model(spec)
    rollout, received = play(spec, model)
    validate(rollout, spec)
    assert np.isfinite(received).all()
    assert (received[..., 1] >= 0).all()
    assert np.abs(received[..., 2]).max() <= 1
    assert (received[..., 3] == 2).all()
    report = PpoUpdate(model, spec, make_ppo(), 1, seed=0, device=CPU).update(stack([rollout]), 0.0)
    assert math.isfinite(report.policy_loss + report.value_loss)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_an_environment_is_stepped_once_for_each_row() -> None:
    spec = spec_of("tests.envs:BoundedRecorder-v0", rollout_steps=7)
    _, received = play(spec, scattered_model(spec), count=3)
    assert received.shape == (7, 3, 2)


def test_the_same_seed_plays_the_same_actions_and_another_seed_plays_others() -> None:
    spec = make_spec(rollout_steps=50)

    def actions(seed: int) -> Array:
        collector = make_collector(make_environments(), spec, seed)
        return collector.collect(make_policy(spec)).actions

    np.testing.assert_array_equal(actions(1), actions(1))
    assert (actions(1) != actions(2)).any()
