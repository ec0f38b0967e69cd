"""Sampling without lock step: who waits for whom, and that the rollouts are whole."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_vector
from dppo_redis.errors import StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.rollout import Rollout, validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.shutdown import StopRequest
from tests.factories import copied, make_collector, make_model, make_policy, make_spec, source
from tests.unit.workers.scripted import Duration, ScriptedEnvironments
from workers.envs import Environments
from workers.sampling.free_collector import FreeCollector
from workers.seeding import actor_seeds

T, N = 6, 3
GRU = NetworkConfig(memory="gru", memory_size=4, hidden=(8,))
ACTED = ("actions", "log_probs", "memory")  # what depends on the policy's draws
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"env_id": "tests.envs:Terminating-v0"},
    "cut off": {"env_id": "tests.envs:Truncating-v0", "env_kwargs": {"length": 4}, "return_discount": 0.9},
    "frames": {"env_id": "tests.envs:Terminating-v0", "env_kwargs": {"length": 5}, "frame_stack": 3},
    "memory": {"env_id": "tests.envs:Terminating-v0", "env_kwargs": {"length": 4}, "network": GRU},
    "metrics": {"env_id": "tests.envs:Reporting-v0"},
    "named parts": {"env_id": "tests.envs:Named-v0"},
    "image": {"env_id": "tests.envs:Image-v0"},
    "mask": {"env_id": "tests.envs:Masked-v0"},
}


def spec_of(env_id: str, env_kwargs: dict[str, Any] | None = None, **more: Any) -> Spec:
    spaces = inspect(source(env_id, **(env_kwargs or {})), use_mask=True)
    return make_spec(
        env_id=env_id,
        env_kwargs=env_kwargs,
        observation=spaces.observation,
        action=spaces.action,
        rollout_steps=T,
        **more,
    )


def unequal(place: int, step: int) -> float:
    """The first is slow, each has slow steps."""
    return (4.0 if place == 0 else 1.0) + (7.0 if (step + 3 * place) % 11 == 0 else 0.1 * place)


def equal(_place: int, _step: int) -> float:
    return 1.0


def free(spec: Spec, duration: Duration, most_open: int = 3, **more: Any) -> FreeCollector:
    sampling = actor_seeds(1, slot=0, boot=0, count=N).sampling
    return FreeCollector(ScriptedEnvironments(spec, N, duration), spec, sampling, most_open, **more)


def played(collector: FreeCollector, policy: ActingPolicy, rollouts: int = 5) -> list[Rollout]:
    found = [copied(collector.collect(policy, None, lambda: policy)) for _ in range(rollouts)]
    for rollout in found:
        validate(rollout, collector.spec)
    return found


def in_lock_step(spec: Spec, policy: ActingPolicy, rollouts: int = 5) -> list[Rollout]:
    vector = make_vector(spec.environment, N, "sync", masked=spec.observation.masked)
    collector = make_collector(Environments(vector, list(range(N))), spec)
    return [copied(collector.collect(policy)) for _ in range(rollouts)]


def assert_equal(found: list[Rollout], wanted: list[Rollout], without: tuple[str, ...] = ()) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.metrics.keys() == other.metrics.keys()
        for name, array in {**vars(one), **one.metrics}.items():
            if name not in (*without, "metrics"):
                theirs = {**vars(other), **other.metrics}[name]
                np.testing.assert_array_equal(array, theirs, err_msg=name)


@pytest.mark.parametrize("name", SPECS)
def test_equally_fast_environments_give_the_rollouts_of_lock_step_bit_for_bit(name: str) -> None:
    spec = spec_of(**SPECS[name])
    policy = make_policy(spec)
    assert_equal(played(free(spec, equal), policy), in_lock_step(spec, policy))


@pytest.mark.parametrize("name", [name for name in SPECS if name not in ("image", "mask")])
def test_each_environment_is_played_without_a_gap_however_fast_the_others_are(name: str) -> None:
    """What does not depend on the actions is what lock step would have sampled."""
    spec = spec_of(**SPECS[name])
    policy = make_policy(spec)
    assert_equal(played(free(spec, unequal), policy), in_lock_step(spec, policy), ACTED)


def test_all_together_wait_for_the_slowest_and_give_the_rollouts_of_lock_step() -> None:
    spec = spec_of("tests.envs:Terminating-v0")
    policy = make_policy(spec)
    assert_equal(played(free(spec, unequal, together=True), policy), in_lock_step(spec, policy))


def test_a_column_goes_on_where_the_last_one_ended() -> None:
    spec = spec_of("tests.envs:Masked-v0")
    rollouts = played(free(spec, unequal), make_policy(spec))
    for one, following in itertools.pairwise(rollouts):
        np.testing.assert_array_equal(one.last_observations, following.observations[0])


def test_a_memory_is_carried_from_rollout_to_rollout() -> None:
    """The log-probabilities follow from a column's first memory and its rows."""
    spec = spec_of(**SPECS["memory"])
    policy = make_policy(spec)
    rollouts = played(free(spec, unequal), policy)
    memory = policy.begin(N)
    for rollout in rollouts:
        np.testing.assert_allclose(rollout.memory, memory, atol=1e-6)
        for t in range(T):
            outputs, memory = policy.step(rollout.observations[t], memory)
            np.testing.assert_allclose(
                policy.log_probs(outputs, rollout.actions[t]), rollout.log_probs[t], atol=1e-5
            )
            memory[rollout.ends[t]] = 0
    assert np.abs(rollouts[1].memory).max() > 0


def versions(spec: Spec) -> Iterator[ActingPolicy]:
    for seed in range(100):
        yield make_policy(spec, make_model(spec, seed))


def test_each_rollout_has_the_policy_of_its_opening_and_they_end_in_order() -> None:
    spec = spec_of("tests.envs:Terminating-v0")
    following = versions(spec)
    opened = [next(following)]
    collector = free(spec, unequal)

    def next_policy() -> ActingPolicy:
        opened.append(next(following))
        return opened[-1]

    for number in range(6):
        rollout = collector.collect(opened[-1], None, next_policy)
        policy = opened[number]
        assert collector.policy is policy
        log_probs = policy.log_probs(policy.outputs(rollout.observations), rollout.actions)
        np.testing.assert_allclose(log_probs, rollout.log_probs, atol=1e-6)
        other = opened[number + 1]
        log_probs = other.log_probs(other.outputs(rollout.observations), rollout.actions)
        assert np.abs(log_probs - rollout.log_probs).max() > 1e-3


@pytest.mark.parametrize("most_open", [1, 2, 3])
def test_fast_environments_begin_the_next_rollouts_while_a_slow_one_finishes(most_open: int) -> None:
    """The first takes 100 times as long: when its column is full, the others have filled K columns."""
    spec = spec_of("tests.envs:Terminating-v0")
    collector = free(spec, lambda place, _: 100.0 if place == 0 else 1.0, most_open)
    policy = make_policy(spec)
    opened = 1

    def next_policy() -> ActingPolicy:
        nonlocal opened
        opened += 1
        return policy

    for ended in range(1, 4):
        collector.collect(policy, None, next_policy)
        opened += most_open == 1 and ended > 1  # by `collect` itself
        assert opened == ended + most_open - 1
        steps = collector.environments.page.steps.tolist()
        assert steps == [T * ended, *(T * opened for _ in range(N - 1))]


def test_a_rollout_is_opened_only_when_it_may_be() -> None:
    spec = spec_of("tests.envs:Terminating-v0")
    collector = free(spec, lambda place, _: 100.0 if place == 0 else 1.0)
    policy = make_policy(spec)
    answers = iter([None, None, policy])
    collector.collect(policy, None, lambda: next(answers, None))
    assert collector.environments.page.steps.tolist() == [T, 2 * T, 2 * T]
    assert collector.is_open
    collector.collect(policy)
    assert not collector.is_open
    assert collector.environments.page.steps.tolist() == [2 * T] * N


def test_shorter_rollouts_hold_what_longer_ones_would() -> None:
    spec = spec_of("tests.envs:Terminating-v0")
    policy = make_policy(spec)
    collector = free(spec, unequal)
    collector.wanted_steps = 2
    short = played(collector, policy, 6)
    assert {len(rollout.rewards) for rollout in short} == {2}
    long = in_lock_step(spec, policy, 2)
    for name in ("observations", "rewards", "terminated", "final_observations", "episode_returns"):
        found, wanted = (np.concatenate([getattr(one, name) for one in some]) for some in (short, long))
        np.testing.assert_array_equal(sorted(found.ravel()), sorted(wanted.ravel()), err_msg=name)


def test_a_running_rollout_ends_at_the_furthest_row_when_it_is_made_shorter() -> None:
    spec = spec_of("tests.envs:Terminating-v0")
    policy = make_policy(spec)
    collector = free(spec, lambda place, _: 1.0 + 0.4 * place)
    wait = collector.environments.wait

    def waited(limit_s: float) -> list[int]:
        if collector.environments.page.steps[0] == 3:
            collector.wanted_steps = 1
        return wait(limit_s)

    collector.environments.wait = waited  # type: ignore[method-assign]
    lengths = [len(collector.collect(policy, None, lambda: policy).rewards) for _ in range(3)]
    assert lengths == [4, 1, 1], "the fourth row of the first was acted on already"


def test_a_stop_ends_it_in_the_middle() -> None:
    spec = spec_of("tests.envs:Terminating-v0")
    collector = free(spec, unequal)
    stop = StopRequest()
    wait = collector.environments.wait

    def waited(limit_s: float) -> list[int]:
        if collector.environments.page.steps[1] == 2:
            stop.request()
        return wait(limit_s)

    collector.environments.wait = waited  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        collector.collect(make_policy(spec), stop)
    assert collector.steps_done < T
