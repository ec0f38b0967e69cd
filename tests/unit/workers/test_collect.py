"""From environments and a policy to a rollout."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_vector
from dppo_redis.errors import EnvironmentBrokenError, WireError
from dppo_redis.protocol.config import EnvValue
from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.observations import FloatArray, ObservationSpec
from learner.ppo.advantages import gae, successor_values
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate
from tests.factories import (
    CPU,
    TERMINATING,
    TRUNCATING,
    copied,
    make_collector,
    make_environments,
    make_model,
    make_policy,
    make_ppo,
    make_spec,
    slow_episodes,
    source,
)
from workers.envs import Environments

MODES = list(AutoresetMode)
LENGTHS: list[dict[str, EnvValue]] = [{"length": 3}, {"length": 5}]


def collect(
    mode: AutoresetMode, *, env_id: str = TERMINATING, rollout_steps: int = 20, rollouts: int = 1
) -> list[Rollout]:
    """Rollouts, one after another, of two environments whose episodes take 3 and 5 steps."""
    spec = make_spec(env_id=env_id, rollout_steps=rollout_steps)
    collector = make_collector(make_environments(env_id, LENGTHS, mode), spec)
    policy = make_policy(spec)
    result = [copied(collector.collect(policy)) for _ in range(rollouts)]
    for rollout in result:
        validate(rollout, spec)
    return result


def rows_of(rollouts: list[Rollout], name: str) -> Any:
    return np.concatenate([getattr(rollout, name) for rollout in rollouts])


@pytest.mark.parametrize("mode", MODES)
def test_shorter_rollouts_hold_what_longer_ones_would(mode: AutoresetMode) -> None:
    """The constant policy's draws differ, so what does not follow from actions is compared."""
    spec = make_spec(rollout_steps=12)
    collector = make_collector(make_environments(TERMINATING, LENGTHS, mode), spec)
    policy = make_policy(spec)
    collector.wanted_steps = 4
    short = [copied(collector.collect(policy)) for _ in range(3)]
    for rollout in short:
        validate(rollout, spec)
        assert len(rollout.rewards) == collector.steps_done == 4
    whole = collect(mode, rollout_steps=12)
    for name in ("observations", "rewards", "terminated", "truncated", "valid", "final_observations"):
        np.testing.assert_array_equal(rows_of(short, name), rows_of(whole, name), err_msg=name)
    np.testing.assert_array_equal(
        sorted(rows_of(short, "episode_returns")), sorted(rows_of(whole, "episode_returns"))
    )


def test_a_running_rollout_ends_at_the_requested_step() -> None:
    spec = make_spec(rollout_steps=12)
    environments = make_environments(TERMINATING, LENGTHS)
    collector = make_collector(environments, spec)
    step = environments.step_raw

    def stepped(actions: Any) -> Any:
        if collector.steps_done == 5:
            collector.wanted_steps = 3
        return step(actions)

    environments.step_raw = stepped  # type: ignore[method-assign]
    policy = make_policy(spec)
    assert [len(collector.collect(policy).rewards) for _ in range(2)] == [6, 3]


def of_environment(rollout: Rollout, n: int, rows: Any) -> list[Any]:
    """The valid rows of environment n, in order, of an array [T, N, ...]."""
    result: list[Any] = rows[rollout.valid[:, n], n].tolist()
    return result


# Known failure KF-ENV-01: episodes of 3 and 5 steps, reward = step index + 1, 20 vector steps.
@pytest.mark.parametrize(
    ("mode", "steps", "returns"),
    [
        (AutoresetMode.NEXT_STEP, 15 + 17, [6] * 5 + [15] * 3),  # 4 or 6 vector steps for an episode
        (AutoresetMode.SAME_STEP, 20 + 20, [6] * 6 + [15] * 4),
        (AutoresetMode.DISABLED, 20 + 20, [6] * 6 + [15] * 4),
    ],
)
def test_no_dummy_row_is_counted_and_episode_returns_are_exact(
    mode: AutoresetMode, steps: int, returns: list[float]
) -> None:
    (rollout,) = collect(mode)
    assert rollout.steps == steps
    assert sorted(rollout.episode_returns.tolist()) == returns
    assert sorted(rollout.episode_lengths.tolist()) == [{6: 3, 15: 5}[int(x)] for x in returns]


@pytest.mark.parametrize("mode", MODES)
def test_the_valid_rows_are_those_of_an_environment_played_by_hand(mode: AutoresetMode) -> None:
    (rollout,) = collect(mode)
    for n, length in enumerate((3, 5)):
        by_hand = [(t % length, t // length + 1) for t in range(20)][: int(rollout.valid[:, n].sum())]
        assert of_environment(rollout, n, rollout.observations) == [list(row) for row in by_hand]
        assert of_environment(rollout, n, rollout.rewards) == [taken + 1 for taken, _ in by_hand]
        assert of_environment(rollout, n, rollout.terminated) == [taken == length - 1 for taken, _ in by_hand]
    assert not rollout.truncated.any()


@pytest.mark.parametrize("env_id", [TERMINATING, TRUNCATING])
@pytest.mark.parametrize("mode", MODES)
def test_final_observations_are_the_true_ones_in_row_order(mode: AutoresetMode, env_id: str) -> None:
    (rollout,) = collect(mode, env_id=env_id)
    begun = [0, 0]
    expected = []
    for _, n in np.argwhere(rollout.ends):
        begun[n] += 1
        expected.append([(3, 5)[n], begun[n]])
    assert rollout.final_observations.tolist() == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_rows_between_two_ends_are_marked_only_where_a_step_was_a_dummy(mode: AutoresetMode) -> None:
    (rollout,) = collect(mode)
    after_an_end = np.zeros_like(rollout.ends)
    after_an_end[1:] = rollout.ends[:-1]
    expected = after_an_end if mode is AutoresetMode.NEXT_STEP else np.zeros_like(rollout.ends)
    np.testing.assert_array_equal(~rollout.valid, expected)
    assert not rollout.rewards[~rollout.valid].any()


def advantages_of(rollout: Rollout) -> FloatArray:
    """With a critic that anyone can compute: V = 0.3 x steps taken - 0.1 x episodes begun."""

    def values(observations: FloatArray) -> FloatArray:
        return observations @ np.array([0.3, -0.1], np.float32)

    state_values = values(rollout.observations)
    successors = successor_values(
        state_values,
        values(rollout.last_observations),
        values(rollout.final_observations),
        rollout.terminated,
        rollout.truncated,
    )
    return gae(rollout.rewards, state_values, successors, rollout.ends.astype(np.float32), 0.9, 0.8)


@pytest.mark.parametrize("env_id", [TERMINATING, TRUNCATING])
def test_all_modes_give_identical_advantages_for_the_same_episodes(env_id: str) -> None:
    """Of environment n the first 15 valid rows: whole episodes in every mode."""
    rollouts = [collect(mode, env_id=env_id)[0] for mode in MODES]
    for n in (0, 1):
        first, *others = (of_environment(rollout, n, advantages_of(rollout))[:15] for rollout in rollouts)
        assert len(first) == 15
        assert others == [first, first]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_run_on_across_rollouts(mode: AutoresetMode) -> None:
    """Ten rollouts of two steps show what one of twenty does."""
    (whole,) = collect(mode)
    parts = collect(mode, rollout_steps=2, rollouts=10)
    for name in ("observations", "rewards", "terminated", "truncated", "valid", "final_observations"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name), err_msg=name)
    for name in ("episode_returns", "episode_lengths"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name), err_msg=name
        )
    np.testing.assert_array_equal(parts[-1].last_observations, whole.last_observations)


@pytest.mark.parametrize("mode", MODES)
def test_the_last_observation_of_a_rollout_is_the_first_of_the_next(mode: AutoresetMode) -> None:
    first, second = collect(mode, rollout_steps=4, rollouts=2)
    np.testing.assert_array_equal(first.last_observations, second.observations[0])


def test_a_rollout_without_an_episode_end_holds_empty_arrays_of_the_right_shape() -> None:
    (rollout,) = collect(AutoresetMode.SAME_STEP, rollout_steps=2)
    assert rollout.final_observations.shape == (0, 2)
    assert (rollout.episode_returns.shape, rollout.episode_lengths.shape) == ((0,), (0,))


def cart_pole(rollout_steps: int, count: int) -> tuple[Spec, Environments]:
    vector: VectorEnv[Any, Any, Any] = make_vector(source("CartPole-v1"), count, "auto")
    spec = make_spec(env_id="CartPole-v1", observation_size=4, rollout_steps=rollout_steps)
    return spec, Environments(vector, [3])


def test_the_native_vector_environment_gives_a_valid_rollout() -> None:
    """Each episode end but those of the last step is followed by one dummy row of its environment."""
    spec, environments = cart_pole(rollout_steps=200, count=4)
    rollout = make_collector(environments, spec).collect(make_policy(spec))
    validate(rollout, spec)
    assert environments.mode is AutoresetMode.NEXT_STEP
    np.testing.assert_array_equal(rollout.ends[:-1], ~rollout.valid[1:])
    assert rollout.ends.sum() > 20
    np.testing.assert_array_equal(rollout.rewards, rollout.valid)
    fallen = (np.abs(rollout.final_observations[:, 0]) > 2.4) | (
        np.abs(rollout.final_observations[:, 2]) > 12 * 2 * np.pi / 360
    )
    assert fallen.all()
    assert (np.abs(rollout.observations[rollout.valid][:, 2]) < 12 * 2 * np.pi / 360).all()


def test_episode_statistics_agree_with_a_walk_over_all_rows() -> None:
    spec, environments = cart_pole(rollout_steps=16, count=5)
    collector = make_collector(environments, spec)
    rollouts = [copied(collector.collect(make_policy(spec))) for _ in range(12)]
    joined = {name: np.concatenate([getattr(r, name) for r in rollouts]) for name in ARRAY_NAMES}
    ends = joined["terminated"] | joined["truncated"]
    returns, lengths = slow_episodes(joined["rewards"], ends, joined["valid"])
    assert len(returns) > 20
    assert joined["episode_returns"].tolist() == returns
    assert joined["episode_lengths"].tolist() == lengths


# Known failure KF-PPO-07.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env_id", "first"),
    [("tests.envs:Int32-v0", 0.0), ("tests.envs:Float64-v0", 0.5), ("tests.envs:SecretlyFloat64-v0", 0.5)],
)
def test_observations_of_every_number_type_travel_as_float32_and_train(
    env_id: str, first: float, mode: AutoresetMode
) -> None:
    spaces = inspect(source(env_id))
    spec = make_spec(env_id=env_id, action=spaces.action, observation=spaces.observation)
    model = make_model(spec)
    rollout = make_collector(make_environments(env_id, mode=mode), spec).collect(make_policy(spec, model))
    validate(rollout, spec)
    assert rollout.observations[:, 0].tolist() == [[first + t] * 2 for t in range(4)]
    assert rollout.final_observations.tolist() == [[first + 4] * 2] * 2
    report = PpoUpdate(model, spec, make_ppo(), 1, seed=0, device=CPU).update(stack([rollout]), 0.0)
    assert np.isfinite(report.value_loss)
    assert report.ratio_error is not None
    assert report.ratio_error < 1e-4


# Known failure KF-WIRE-02.
@pytest.mark.parametrize("mode", MODES)
def test_rewards_and_flags_of_any_type_become_fixed_dtypes(mode: AutoresetMode) -> None:
    spec = make_spec(rollout_steps=10)
    collector = make_collector(make_environments("tests.envs:OddNumbers-v0", [{"length": 7}], mode), spec)
    rollout = collector.collect(make_policy(spec))
    validate(rollout, spec)
    assert rollout.rewards[:7, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.flatnonzero(rollout.terminated[:, 0]).tolist() == [6]


def test_environments_with_other_observations_than_the_run_are_broken() -> None:
    """A single feature would be copied into all of the run's."""
    environments = make_environments("tests.envs:Terminating-v0", [{}, {}])
    spec = make_spec(observation=ObservationSpec.vector(3))
    with pytest.raises(EnvironmentBrokenError, match=r"observes float32 \(2,\), the run float32 \(3,\)"):
        make_collector(environments, spec)


def test_an_unusual_info_never_breaks_a_rollout() -> None:
    spec = make_spec(rollout_steps=20)
    vector = make_vector(source("tests.envs:OddInfos-v0"), 7, "sync")
    rollout = make_collector(Environments(vector, list(range(7))), spec).collect(make_policy(spec))
    validate(rollout, spec)
    assert rollout.episode_returns.tolist() == [6] * 6 * 7


# Known failure KF-ENV-04.
@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        ({"at": 3}, "observations"),
        ({"at": 4}, "last_observations"),
        ({"at": 4, "length": 4}, "final_observations"),
    ],
    ids=["in the middle", "in the last step", "in the final observation"],
)
def test_a_rollout_with_a_nan_observation_is_refused(kwargs: dict[str, EnvValue], field: str) -> None:
    spec = make_spec()
    collector = make_collector(make_environments("tests.envs:NanObservation-v0", [kwargs]), spec)
    rollout = collector.collect(make_policy(spec))
    with pytest.raises(WireError, match=f"nonfinite: {field}"):
        validate(rollout, spec)


@pytest.mark.parametrize("at", [1, 3, 4], ids=["first step", "last step", "next episode"])
def test_an_infinite_reward_spoils_one_rollout_and_none_after_its_episode(at: int) -> None:
    """Rollouts of 4 steps, episodes of 3: the episodes of the third rollout began after the fault."""
    spec = make_spec()
    collector = make_collector(make_environments("tests.envs:InfiniteReward-v0", [{"at": at}]), spec)
    policy = make_policy(spec)
    with pytest.raises(WireError, match="nonfinite"):
        validate(collector.collect(policy), spec)
    collector.collect(policy)
    third = collector.collect(policy)
    validate(third, spec)
    assert third.episode_returns.tolist() == [6, 6]


def test_sampling_needs_no_torch() -> None:
    """An actor starts faster and stays smaller without it."""
    program = "import sys, workers.collect, dppo_redis.environments.make; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
