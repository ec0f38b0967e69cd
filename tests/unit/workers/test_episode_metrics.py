"""What environments report travels from their last info into rollouts and evaluations."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dppo_redis.environments.make import make_vector
from dppo_redis.errors import WireError
from dppo_redis.protocol.rollout import Rollout, validate
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.spaces.episode_metrics import EpisodeMetrics, to_episodes
from learner.intake.decoder import RolloutDecoder
from learner.progress import Progress
from tests.envs.reporting import HOSTILE_KEPT, reported
from tests.factories import copied, make_collector, make_environments, make_policy, make_spec, source
from workers.collect import Collector
from workers.envs import Environments
from workers.sampling.metric_names import MetricNames

REPORTING = "tests.envs:Reporting-v0"
SPEC = make_spec(env_id=REPORTING, rollout_steps=10)


def wanted(episode: int) -> dict[str, float]:
    info = reported(episode)
    return {"is_success": float(info["is_success"])} | {k: float(v) for k, v in info["metrics"].items()}


def rollouts_of(collector: Collector, count: int) -> Iterator[Rollout]:
    policy = make_policy(SPEC)
    for _ in range(count):
        rollout = copied(collector.collect(policy))
        validate(rollout, SPEC)
        yield rollout


def episodes_of(rollouts: Iterator[Rollout]) -> list[dict[str, float]]:
    return [one for rollout in rollouts for one in to_episodes(rollout.metrics, len(rollout.episode_returns))]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_each_ended_episode_has_the_numbers_of_its_last_info(mode: AutoresetMode) -> None:
    """Two environments in step: episode k of both ends at the same time."""
    collector = make_collector(make_environments(REPORTING, ({}, {}), mode), SPEC)
    episodes = episodes_of(rollouts_of(collector, 5))
    assert episodes[:20:2] == [wanted(k) for k in range(10)]
    assert episodes[1:20:2] == episodes[:20:2]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_whole_numbers_and_fractions_of_copies_are_not_rounded(vectorization: str) -> None:
    """gymnasium stacks them in an array of the first one's type."""
    vector = make_vector(source(REPORTING), 2, "async" if vectorization == "async" else "sync")
    with closing(Environments(vector, seeds=[1, 2])) as environments:
        episodes = episodes_of(rollouts_of(make_collector(environments, SPEC), 2))
    assert episodes == [wanted(k) for k in (0, 0, 1, 1, 2, 2, 3, 3, 4, 4)]


def test_hostile_names_are_counted_and_the_rollout_continues(caplog: pytest.LogCaptureFixture) -> None:
    collector = make_collector(make_environments(REPORTING, ({"hostile": True},)), SPEC)
    with caplog.at_level(logging.WARNING):
        episodes = episodes_of(rollouts_of(collector, 2))
    assert episodes == [HOSTILE_KEPT] * 5
    assert collector.refused_metrics == 5 * 6
    assert len(caplog.messages) == 1
    assert caplog.messages[0].isprintable()


def test_an_actor_keeps_its_first_32_names() -> None:
    names = MetricNames()
    first = EpisodeMetrics(tuple((f"n{k}", 1.0) for k in range(30)))
    second = EpisodeMetrics(tuple((f"m{k}", 1.0) for k in range(4)))
    assert len(names.known([first, second])) == 32
    assert names.refused == 2
    assert names.known([first])[-1] == "m1"


class TestTheWire:
    @pytest.fixture
    def rollout(self) -> Rollout:
        return next(rollouts_of(make_collector(make_environments(REPORTING), SPEC), 1))

    def test_metrics_arrive_exactly_after_any_earlier_decoding(self, rollout: Rollout) -> None:
        decoder = RolloutDecoder(SPEC)
        plain = replace(rollout, metrics={})
        for sent in (plain, rollout, plain, rollout):
            received = decoder.decode(encode_rollout(sent))
            assert to_episodes(received.metrics, 4) == to_episodes(sent.metrics, 4)

    def test_a_rollout_without_metrics_is_sent_as_ever(self, rollout: Rollout) -> None:
        assert b"metrics" in encode_rollout(rollout)
        assert b"metrics" not in encode_rollout(replace(rollout, metrics={}))

    @pytest.mark.parametrize(
        "metrics",
        [
            {"a b": np.zeros(4)},
            {f"n{k}": np.zeros(4) for k in range(33)},
            {"x": np.zeros(3)},
            {"x": np.zeros(4, np.float32)},
            {"x": np.array([0, np.inf, 0, 0])},
        ],
    )
    def test_metrics_that_no_actor_sends_are_refused(
        self, rollout: Rollout, metrics: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]
    ) -> None:
        with pytest.raises(WireError):
            validate(decode_rollout(encode_rollout(replace(rollout, metrics=metrics)), SPEC), SPEC)


class TestProgress:
    def test_means_are_over_the_last_100_episodes_that_have_the_number(self) -> None:
        progress, episodes = Progress(), [wanted(k) for k in range(250)]
        for k in range(0, 250, 50):
            progress.add_update(1, [0], [4.0] * 50, episodes[k : k + 50])
        rare = [k + 0.5 for k in range(150, 250) if k % 3 == 0]
        assert progress.metrics.means == {
            "is_success": 0.5,
            "number": np.mean(range(150, 250)),
            "rare": np.mean(rare),
        }

    def test_a_resumed_run_continues_with_its_window(self) -> None:
        progress = Progress()
        progress.add_update(1, [0], [4.0] * 7, [wanted(k) for k in range(7)])
        again = Progress.from_dict(progress.to_dict())
        assert again.metrics.means == progress.metrics.means

    def test_without_numbers_a_checkpoint_is_what_it_was(self) -> None:
        progress = Progress()
        progress.add_update(1, [0], [4.0], [{}])
        assert "metrics" not in progress.to_dict()
        assert Progress.from_dict(progress.to_dict()).metrics.means == {}

    def test_a_run_keeps_its_first_32_names(self) -> None:
        progress = Progress()
        progress.add_update(1, [0], [1.0], [{f"n{k}": 1.0 for k in range(40)}])
        assert list(progress.metrics.means) == [f"n{k}" for k in range(32)]
        assert progress.metrics.left_out == 8
