"""Whole episodes, played for their returns."""

import statistics

import pytest

from dppo_redis.errors import EnvironmentBrokenError
from dppo_redis.shutdown import StopRequest
from ops.bench.records import score
from ops.evaluate import half_width
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


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10])
def test_the_interval_is_student_s_as_that_of_the_scores(count: int) -> None:
    returns = [float((7 * i) % 11) for i in range(count)]
    exact = score(returns).half
    assert exact is not None
    assert half_width(statistics.pstdev(returns), count) == pytest.approx(exact, rel=0.01)


def test_many_episodes_have_the_normal_interval_and_one_has_none() -> None:
    assert half_width(10.0, 10_001) == pytest.approx(0.196, rel=1e-3)
    assert half_width(0.0, 1) is None
