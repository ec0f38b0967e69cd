"""Whole episodes, played for their returns."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from dppo_redis.artefacts.best_policy import keep_best
from dppo_redis.environments.assigned_episodes import AssignedEpisodes
from dppo_redis.errors import EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.shutdown import StopRequest
from ops.commands.evaluate import EvaluateOptions, play
from ops.fleet.run_directory import RunDirectory, prepare
from ops.policies.intervals import half_width
from ops.policies.load_policy import load_policy
from tests.factories import (
    TERMINATING,
    describe,
    make_config,
    make_description,
    make_environments,
    make_model,
    make_policy,
    make_spec,
    make_weights,
)
from workers.episodes import EpisodePlayer, EvaluationBudget, NoEpisodeError, evaluate
from workers.evaluation_copies import Choice, StepCost, choose, measure
from workers.seeding import evaluation_seeds
from workers.watchdog import CallClock

MIXED = make_spec(env_id="tests.envs:ShortAndGood-v0")


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
        played.append(play(load_policy(tmp_path, "best"), options, StopRequest()).return_mean)
        assert played[-1] != chosen.return_mean
    assert played[0] == played[1]


def play_mixed(copies: int | None, spec: Spec = MIXED, **join: Any) -> Evaluation:
    description = make_description(spec, evaluation_episodes=9, evaluation_environments=copies, **join)
    return evaluate(make_policy(spec), description, StopRequest())


def test_which_copy_ends_first_changes_nothing() -> None:
    """Good episodes are short: played first come, first served, two copies would play more of them."""
    good = [bool(np.random.default_rng(s).integers(2)) for s in evaluation_seeds(1, version=1, count=9)]
    assert 2 <= sum(good) <= 7
    for copies in (1, 2, 4, 9, 50, None):
        result = play_mixed(copies)
        assert result.return_mean == pytest.approx(10 * np.mean(good))
        assert result.length_mean == pytest.approx(np.mean([2 if one else 30 for one in good]))
        assert (result.episodes, result.planned, result.complete) == (9, 9, True)


def test_a_copy_plays_every_nth_episode_and_then_rests() -> None:
    env = AssignedEpisodes(gymnasium.make("tests.envs:ShortAndGood-v0", length=2))
    env.next_seeds = [8, 9]
    seen = [env.reset(seed=7)[0].tolist()]
    for _ in range(3):
        env.step(0)
        assert env.step(0)[2]
        seen.append(env.reset()[0].tolist())
    assert seen == [[0, 1], [0, 2], [0, 3], [2, 3]]  # steps taken, episodes begun: the last one rests
    assert env.step(0)[1:] == (0.0, False, False, {})
    assert env.reset(seed=7)[0].tolist() == [0, 4]


def test_a_cut_evaluation_counts_the_ended_episodes_and_is_not_complete() -> None:
    player = EpisodePlayer(make_description(MIXED, evaluation_episodes=9))
    seen: list[int] = []

    def may_continue(ended: int) -> bool:
        seen.append(ended)
        return len(seen) < 5

    cut = player.evaluate(make_policy(MIXED), StopRequest(), may_continue=may_continue)
    assert (cut.return_mean, cut.length_mean, cut.planned, cut.complete) == (10, 2, 9, False)
    assert cut.episodes == seen[-1] < 9
    again = player.evaluate(make_policy(MIXED), StopRequest())
    player.close()
    assert (again, again.complete) == (play_mixed(None), True), "the copies begin anew"


def test_an_evaluation_without_an_episode_that_ended_is_none_and_names_the_remedy() -> None:
    spec = make_spec(env_id="tests.envs:Slow-v0", env_kwargs={"ms": 1, "length": 100_000})
    player = EpisodePlayer(make_description(spec, evaluation_environments=1))
    with pytest.raises(NoEpisodeError, match=r"no episode had ended .* after 0 s.*--evaluation.wrappers"):
        player.evaluate(make_policy(spec), StopRequest(), limit_s=0.2)
    player.close()


def test_one_endless_episode_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.episodes.LONGEST_EPISODE", 20)
    result = play_mixed(None)
    assert (result.return_mean, result.planned, result.complete) == (10, 9, False)


def test_a_stop_ends_an_evaluation_within_a_step() -> None:
    spec = make_spec(env_id="tests.envs:Slow-v0", env_kwargs={"ms": 20, "length": 100_000})
    player, stop = EpisodePlayer(make_description(spec, evaluation_environments=1)), StopRequest()
    ended = []

    def may_continue(_ended: int) -> bool:
        ended.append(time.monotonic())
        stop.request()
        return True

    with pytest.raises(StoppedError):
        player.evaluate(make_policy(spec), stop, may_continue=may_continue)
    assert time.monotonic() - ended[-1] < 0.5
    player.close()


def test_copies_that_wait_are_stepped_at_the_same_time_in_processes_that_are_kept() -> None:
    """12 episodes of up to 100 steps of 5 ms: six seconds or less in parallel, far more one after another."""
    spec = make_spec(env_id="tests.envs:ShortAndGood-v0", env_kwargs={"length": 100, "ms": 5})
    calls = CallClock()
    description = make_description(spec, evaluation_episodes=12)
    player = EpisodePlayer(description, calls)
    first = player.evaluate(make_policy(spec), StopRequest())
    processes = {process.pid for process in calls.processes}
    began, cpu_s = time.monotonic(), player.cpu_s
    again = player.evaluate(make_policy(spec), StopRequest())
    took_s = time.monotonic() - began
    assert {process.pid for process in calls.processes} == processes
    assert player.cpu_s > cpu_s
    player.close()
    assert len(processes) == 12
    assert first == again
    alone_s = 0.005 * first.length_mean * first.episodes
    assert took_s < alone_s / 2, f"{took_s:.2f} s, one after another {alone_s:.2f} s"
    fast = make_spec(env_id="tests.envs:ShortAndGood-v0", env_kwargs={"length": 100})
    assert (
        first.return_mean
        == evaluate(
            make_policy(fast), make_description(fast, evaluation_episodes=12), StopRequest()
        ).return_mean
    ), "wherever they are played"


def test_evaluation_has_its_own_wrappers_where_they_are_given() -> None:
    spec = make_spec(wrappers=("TimeLimit(max_episode_steps=2)",))

    def length(**join: Any) -> float:
        return evaluate(make_policy(spec), make_description(spec, **join), StopRequest()).length_mean

    assert length() == 2
    assert length(evaluation_wrappers=()) == 3
    assert length(evaluation_wrappers=("TimeLimit(max_episode_steps=1)",)) == 1


@pytest.mark.parametrize(
    ("cost", "environments", "cores", "chosen"),
    [
        (StepCost(30e-6, 1e-4, 0.99, 0.0), None, 2, Choice(20, in_processes=False)),  # fast
        (StepCost(30e-6, 1e-4, 0.99, 0.0), 4, 2, Choice(4, in_processes=False)),
        (StepCost(30e-6, 1e-4, 0.99, 0.0), 100, 2, Choice(100, in_processes=False)),
        (StepCost(5e-3, 1e-4, 0.02, 1.0), None, 2, Choice(20, in_processes=True)),  # it sleeps
        (StepCost(5e-3, 1e-4, 0.02, 1.0), None, 1, Choice(20, in_processes=True)),
        (StepCost(5e-3, 1e-4, 0.02, 1.0), 3, 2, Choice(3, in_processes=True)),
        (StepCost(5e-3, 1e-4, 0.02, 1.0), 1, 2, Choice(1, in_processes=False)),
        (StepCost(5e-3, 1e-4, 0.99, 0.1), None, 2, Choice(2, in_processes=True)),  # it computes
        (StepCost(5e-3, 1e-4, 0.99, 0.1), None, 64, Choice(20, in_processes=True)),
        (StepCost(5e-3, 1e-4, 0.99, 0.1), None, 1, Choice(1, in_processes=False)),
        (StepCost(5e-3, 1e-4, 0.30, 0.0), None, 2, Choice(2, in_processes=True)),  # on a busy machine
        (StepCost(30e-6, 2.0, 0.02, 5.0), None, 2, Choice(20, in_processes=True)),  # slow to reset alone
    ],
)
def test_the_number_of_copies_follows_from_the_cost_of_one(
    cost: StepCost, environments: int | None, cores: int, chosen: Choice
) -> None:
    assert choose(cost, 100, environments, cores) == chosen
    assert choose(cost, 2, environments, cores).count == min(2, chosen.count)


def test_a_step_that_sleeps_is_distinguished_from_one_that_computes() -> None:
    def cost_of(env_id: str, **kwargs: Any) -> StepCost:
        environments = make_environments(env_id, [kwargs])
        return measure(environments, make_policy(make_spec(env_id=env_id)), StopRequest())

    sleeping = cost_of("tests.envs:Slow-v0", ms=5)
    assert (sleeping.is_slow, sleeping.waits) == (True, True)
    computing = cost_of("tests.envs:Computing-v0", ms=5)
    assert (computing.is_slow, computing.waits) == (True, False)
    assert not cost_of("tests.envs:Terminating-v0").is_slow


def test_evaluations_are_rationed_by_computing_time_and_the_first_of_those_that_wait_are_not() -> None:
    budget = EvaluationBudget(interval_s=0.25, max_share=0.05)
    assert budget.rest_s(0.001, waits=False) == 0.25
    assert budget.rest_s(1.0, waits=False) == pytest.approx(20)
    assert [budget.rest_s(4.0, waits=True) for _ in range(4)] == pytest.approx([0.25, 0.25, 40, 80])
    assert EvaluationBudget(0.25, max_share=0.5).rest_s(4.0, waits=False) == 8
