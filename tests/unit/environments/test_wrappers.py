"""Wrappers that a configuration names, and environments that need copying."""

import re
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import (
    FilterObservation,
    FrameStackObservation,
    RecordEpisodeStatistics,
    TimeLimit,
)

from dppo_redis.environments.inspect import check_evaluation, inspect
from dppo_redis.environments.make import make_single, make_vector
from dppo_redis.environments.plain import OwnObservations
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.spaces.observations import ObservationSpec
from tests.envs.observations import Reusing
from tests.factories import TERMINATING, make_config, source, spaces_of
from tests.unit.playing import MODES, play, spec_of
from tests.wrappers import Scaled, Shifted
from workers.envs import Environments

SPOKEN = "tests.envs:Spoken-v0"
FILTER = "FilterObservation(filter_keys=['image', 'direction'])"


def layers(env: gymnasium.Env[Any, Any]) -> list[type[Any]]:
    """The wrappers, outermost first."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(type(env))
        env = env.env
    return found


def test_a_wrapper_of_gymnasium_is_named_alone_or_with_arguments() -> None:
    env = make_single(source(TERMINATING, "RecordEpisodeStatistics", "TimeLimit(max_episode_steps=2)"))
    assert layers(env)[:2] == [TimeLimit, RecordEpisodeStatistics], "the outermost is named last"
    assert env.get_wrapper_attr("_max_episode_steps") == 2


def test_a_wrapper_of_a_module_is_named_with_it() -> None:
    env = make_single(
        source(TERMINATING, "tests.wrappers:Scaled(factor=3)", "tests.wrappers:Shifted(factor=1.5)")
    )
    assert layers(env)[:2] == [Shifted, Scaled]
    assert env.reset()[0].tolist() == [0 * 3 + 1.5, 1 * 3 + 1.5]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("TransformReward(lambda r: r)", "lambda r: r"),
        ("TransformReward(func=lambda r: r / 10)", "lambda r: r / 10"),
        ("TransformReward(func=numpy.sign)", "numpy.sign"),
        ("ClipReward(min_reward=-limit)", "-limit"),
    ],
)
def test_code_in_a_wrapper_is_refused_with_what_to_do(text: str, code: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_single(source(TERMINATING, text))
    message = str(caught.value)
    assert message.startswith(f"wrappers: {text!r}: {code!r} is code")
    assert message.endswith("name it as module:Class")


def test_wrappers_apply_in_the_order_they_are_given_in() -> None:
    env = make_single(
        source(TERMINATING, "tests.wrappers:Shifted(factor=1.5)", "tests.wrappers:Scaled(factor=3)")
    )
    assert env.reset()[0].tolist() == [(0 + 1.5) * 3, (1 + 1.5) * 3]


@pytest.mark.parametrize(
    ("text", "value"),
    [("factor=3", 3), ("factor = -2.5", -2.5), ("factor=1e1,", 10), ("", 1), ("factor=True", True)],
)
def test_arguments_are_plain_values(text: str, value: float) -> None:
    env = make_single(source(TERMINATING, f"tests.wrappers:Scaled({text})"))
    assert env.get_wrapper_attr("factor") == value


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [
        ("Nothing", "'gymnasium.wrappers:Nothing' cannot be imported"),
        ("no.such.module:Wrapper", "'no.such.module:Wrapper' cannot be imported.*No module named"),
        ("tests.wrappers:Nothing", "'tests.wrappers:Nothing' cannot be imported.*Nothing"),
        ("tests.wrappers:", "'tests.wrappers:' cannot be imported"),
        ("tests.broken_module:Wrapper", "cannot be imported.*RuntimeError: the licence"),
        ("", "cannot be imported"),
        ("TimeLimit", "TimeLimit cannot be applied: TypeError:.*max_episode_steps"),
        ("TimeLimit(steps=3)", "TimeLimit.steps=3. cannot be applied: TypeError:.*steps"),
        ("TimeLimit(3)", "is not Name.key=value, ....*arguments are given by name"),
        ("TimeLimit(max_episode_steps=f())", "is code, .*module:Class"),
        ("TimeLimit(max_episode_steps=3", "is not Name.key=value"),
        ("TimeLimit(**{'a': 1})", "is not Name.key=value"),
        ("TimeLimit(__import__('os'))", "is code, .*module:Class"),
        ("NormalizeObservation", "NormalizeObservation would keep .* set ppo.normalise_observations instead"),
        ("NormalizeReward(gamma=0.9)", "NormalizeReward.* would keep .* set ppo.normalise_returns instead"),
        ("tests.wrappers:forgetful", "forgetful cannot be applied: TypeError: it returned a NoneType"),
    ],
)
def test_a_wrapper_that_cannot_be_applied_is_one_line_that_names_it(wrapper: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^wrappers: .*{says}") as caught:
        make_single(source(TERMINATING, wrapper))
    assert "\n" not in str(caught.value)


def test_a_wrapper_is_part_of_the_configuration_and_of_what_is_inspected() -> None:
    config = make_config(
        env_id=TERMINATING, wrappers=["FlattenObservation", "tests.wrappers:Scaled(factor=2)"]
    )
    assert config.wrappers == ("FlattenObservation", "tests.wrappers:Scaled(factor=2)")
    spaces = inspect(source("tests.envs:Pair-v0", "FlattenObservation"))
    assert spaces.observation == ObservationSpec.vector(5, str(spaces.observation.fields[0].dtype))


def test_wrappers_reach_every_environment_and_end_the_native_vector() -> None:
    """A native vector environment would ignore them."""
    vector = make_vector(source("CartPole-v1", "TimeLimit(max_episode_steps=3)"), 3, "auto")
    environments = Environments(vector, [1, 2, 3])
    environments.reset()
    truncated = [environments.step(np.array([0, 1, 0])).truncated.tolist() for _ in range(3)]
    assert truncated == [[False] * 3, [False] * 3, [True] * 3]


def test_wrappers_reach_environments_in_processes_of_their_own() -> None:
    environments = Environments(
        make_vector(source(TERMINATING, "tests.wrappers:Scaled(factor=3)"), 1, "async"), [0]
    )
    try:
        assert environments.reset().tolist() == [[0, 3]]
    finally:
        environments.close()


# Known failure KF-ENV-02.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "wrappers",
    [
        ("RecordEpisodeStatistics",),
        ("RecordEpisodeStatistics", "tests.wrappers:Scaled"),
        ("tests.wrappers:Scaled", "RecordEpisodeStatistics"),
    ],
    ids=["alone", "inside", "around"],
)
def test_episodes_are_counted_right_wherever_statistics_are_recorded(
    wrappers: tuple[str, ...], mode: AutoresetMode
) -> None:
    def played(*names: str) -> Rollout:
        return play(spec_of(source("tests.envs:Matrix-v0", *names), rollout_steps=12), mode)[0]

    plain, wrapped = played(), played(*wrappers)
    np.testing.assert_array_equal(wrapped.final_observations, plain.final_observations)
    assert wrapped.episode_returns.tolist() == plain.episode_returns.tolist()
    assert wrapped.episode_lengths.tolist() == plain.episode_lengths.tolist()
    assert {3, 4, 1} == set(wrapped.episode_lengths.tolist())
    assert {1 + 2 + 3, 1 + 2 + 3 + 4, 1} == set(wrapped.episode_returns.tolist())


def test_words_are_refused_by_the_name_of_their_part_and_a_filter_drops_them() -> None:
    """An environment as in minigrid."""
    with pytest.raises(ConfigurationError, match=r"Text.*\(part mission\).*FilterObservation"):
        inspect(source(SPOKEN))
    env = make_single(source(SPOKEN, FILTER))
    assert layers(env)[0] is FilterObservation
    spec = spec_of(source(SPOKEN, FILTER))
    assert [(field.name, field.kind, field.shape) for field in spec.observation.fields] == [
        ("direction", "categories", (1,)),
        ("image", "image", (7, 7, 3)),
    ]
    for mode in MODES:
        (rollout,) = play(spec, mode)
        assert rollout.observations["image"].dtype == np.uint8
        assert set(rollout.observations["direction"].flatten().tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", ["Reusing", "ReusingNamed"])
def test_environments_that_reuse_their_buffers_show_the_right_observations(
    env: str, mode: AutoresetMode
) -> None:
    """Episodes of 3, 4 and 1 steps; an observation counts the steps taken."""
    spec = spec_of(env, rollout_steps=12)
    (rollout,) = play(spec, mode)

    def counts(rows: Any) -> Any:
        return rows if spec.observation.is_plain else rows["count"]

    expected = {0: 3, 1: 4, 2: 1}
    for (_, n), final in zip(np.argwhere(rollout.ends), counts(rollout.final_observations), strict=True):
        assert final.tolist() == [expected[int(n)]] * 2
    for n, length in expected.items():
        seen = counts(rollout.observations)[rollout.valid[:, n], n, 0].tolist()
        assert seen == [t % length for t in range(len(seen))]


def stacked(env_id: str, **kwargs: Any) -> list[list[float]]:
    env = make_single(source(env_id, "FrameStackObservation(stack_size=3)", **kwargs))
    env.reset()
    frames = [env.step(0)[0] for _ in range(2)][-1]
    return [frame.tolist() for frame in frames]


def test_a_frame_stack_of_gymnasium_keeps_frames_of_an_environment_that_reuses_its_buffer() -> None:
    assert stacked("tests.envs:Reusing-v0") == [[0, 0], [1, 1], [2, 2]]


def test_a_frame_stack_inside_the_environment_keeps_its_frames() -> None:
    def build(**_: Any) -> gymnasium.Env[Any, Any]:
        return FrameStackObservation(Reusing(), stack_size=3)

    gymnasium.register("Stacking-v0", entry_point=cast(Any, build), disable_env_checker=True)
    try:
        env = make_single(source("Stacking-v0"))
        env.reset()
        assert [env.step(0)[0] for _ in range(2)][-1].tolist() == [[0, 0], [1, 1], [2, 2]]
    finally:
        del gymnasium.registry["Stacking-v0"]


def test_an_environment_alone_is_not_wrapped_once_more() -> None:
    """Its observations are copied outside."""
    assert OwnObservations not in layers(make_single(source("CartPole-v1")))


def refused_in_evaluation(*wrappers: str) -> str:
    evaluation, training = {"wrappers": wrappers}, ["TimeLimit(max_episode_steps=2)"]
    config = make_config(env_id=TERMINATING, wrappers=training, evaluation=evaluation)
    with pytest.raises(ConfigurationError) as caught:
        check_evaluation(config, spaces_of(config))
    return str(caught.value)


def test_wrappers_of_evaluation_may_change_episodes_but_not_what_the_policy_sees() -> None:
    allowed = make_config(env_id=TERMINATING, evaluation={"wrappers": ["TimeLimit(max_episode_steps=2)"]})
    check_evaluation(allowed, spaces_of(allowed))
    assert re.search(
        r"^evaluation.wrappers: with .*FrameStack.* observations .*3.* where training has",
        refused_in_evaluation("FrameStackObservation(stack_size=3)"),
    )
    assert "Nothing' cannot be imported" in refused_in_evaluation("Nothing")
    normalising = refused_in_evaluation("NormalizeObservation")
    assert normalising.startswith("evaluation.wrappers: NormalizeObservation: ")
    assert "would keep statistics" in normalising


def test_without_evaluation_its_wrappers_are_not_looked_at() -> None:
    config = make_config(env_id=TERMINATING, evaluation={"wrappers": ["Nothing"], "enabled": False})
    check_evaluation(config, spaces_of(config))


def test_a_reusing_environment_in_a_process_of_its_own_shows_the_right_observations() -> None:
    environments = Environments(make_vector(source("tests.envs:ReusingNamed-v0"), 1, "async"), [0])
    try:
        environments.reset()
        steps = [environments.step(np.zeros(1, np.int64)) for _ in range(5)]
        assert [int(step.observations["count"][0, 0]) for step in steps] == [1, 2, 3, 0, 1]
        final = steps[3].final_observations
        assert final is not None
        assert final["screen"].tolist() == [[[4] * 3] * 2]
    finally:
        environments.close()
