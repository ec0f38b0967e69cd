"""Whole episodes, played for their returns."""

from pathlib import Path

import pytest

from dppo_redis.artefacts.best_policy import keep_best
from dppo_redis.environments.inspect import describe
from dppo_redis.errors import EnvironmentBrokenError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.service.shutdown import StopRequest
from ops.commands.evaluate import EvaluateOptions, play
from ops.fleet.run_directory import RunDirectory, prepare
from ops.policies.intervals import half_width
from ops.policies.load_policy import load_learnt
from tests.factories import (
    TERMINATING,
    make_config,
    make_description,
    make_model,
    make_policy,
    make_spec,
    make_weights,
)
from workers.episodes import evaluate


def test_the_returns_are_those_of_whole_episodes() -> None:
    """Episodes of 3 steps, rewarded with 1, 2 and 3."""
    spec = make_spec(env_id=TERMINATING)
    result = evaluate(make_policy(spec), make_description(spec), StopRequest())
    assert (result.episodes, result.return_mean, result.return_std, result.length_mean) == (2, 6, 0, 3)


def test_an_episode_that_never_ends_is_given_up_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.episodes.LONGEST_EPISODE", 50)
    spec = make_spec(env_id=TERMINATING, env_kwargs={"length": 51})
    with pytest.raises(EnvironmentBrokenError, match=r"not ended after 50 steps.*TimeLimit"):
        evaluate(make_policy(spec), make_description(spec), StopRequest())
    spec = make_spec(env_id=TERMINATING, env_kwargs={"length": 50})
    assert evaluate(make_policy(spec), make_description(spec), StopRequest()).length_mean == 50


@pytest.mark.parametrize(
    ("count", "half"),
    [(2, 12.706), (3, 4.303 / 2**0.5), (5, 2.776 / 2), (11, 2.228 / 10**0.5), (31, 2.042 / 30**0.5)],
)
def test_the_interval_of_few_values_is_student_s(count: int, half: float) -> None:
    assert half_width(1.0, count) == pytest.approx(half, rel=3e-4)


def test_many_episodes_have_the_normal_interval_and_one_has_none() -> None:
    assert half_width(10.0, 10_001) == pytest.approx(0.196, rel=1e-3)
    assert half_width(0.0, 1) is None


def test_every_version_is_judged_by_the_same_episodes_and_none_by_those_that_chose_the_best(
    tmp_path: Path,
) -> None:
    config = make_config(env_id="CartPole-v1", seed=3)
    description = describe(config)
    prepare(RunDirectory("run", tmp_path), config, resume=False)
    played = []
    for version in (1, 7):
        weights = make_weights(description.spec, make_model(description.spec), version=version)
        chosen = evaluate(ActingPolicy(weights, description.spec), description, StopRequest())
        keep_best(tmp_path, weights, chosen)
        options = EvaluateOptions(tmp_path, seed=3, episodes=chosen.episodes)
        played.append(play(load_learnt(tmp_path, "best"), options, StopRequest()).return_mean)
        assert played[-1] != chosen.return_mean
    assert played[0] == played[1]
