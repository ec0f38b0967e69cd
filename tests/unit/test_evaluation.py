"""Whole episodes, played for their returns."""

import pytest

from dppo_redis.errors import EnvironmentBrokenError
from dppo_redis.shutdown import StopRequest
from tests.factories import TERMINATING, make_description, make_policy, make_spec
from workers.evaluate import evaluate


def test_the_returns_are_those_of_whole_episodes() -> None:
    """Episodes of 3 steps, rewarded with 1, 2 and 3."""
    spec = make_spec(env_id=TERMINATING)
    result = evaluate(make_policy(spec), make_description(spec), StopRequest())
    assert (result.episodes, result.return_mean, result.return_std, result.length_mean) == (2, 6, 0, 3)


def test_an_episode_that_never_ends_is_given_up_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.evaluate.LONGEST_EPISODE", 50)
    spec = make_spec(env_id=TERMINATING, env_kwargs={"length": 51})
    with pytest.raises(EnvironmentBrokenError, match=r"not ended after 50 steps.*TimeLimit"):
        evaluate(make_policy(spec), make_description(spec), StopRequest())
    spec = make_spec(env_id=TERMINATING, env_kwargs={"length": 50})
    assert evaluate(make_policy(spec), make_description(spec), StopRequest()).length_mean == 50
