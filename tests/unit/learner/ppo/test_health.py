"""Signs of an unhealthy update."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ops
from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.protocol.config import PpoConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.logs import RateLimit
from dppo_redis.spaces.observations import Field, ObservationSpec
from learner.health_log import HealthLog, RunWarnings
from learner.ppo.drift import Drift
from learner.ppo.health import RULES
from learner.ppo.update import PpoUpdate, UpdateReport
from tests.factories import CPU, box, discrete, make_batch, make_model, make_ppo, make_spec

SPEC = make_spec(action=discrete(4))
HEALTHY = UpdateReport(
    policy_loss=-0.01,
    value_loss=100.0,
    entropy=0.7,
    approx_kl=0.01,
    clip_fraction=0.1,
    explained_variance=0.5,
    ratio_error=1e-6,
    learning_rate=1e-3,
    gamma=0.99,
    episode_steps=200.0,
    gradient_steps=80,
    skipped_steps=0,
    outlier_observations=0,
    outlier_rewards=0,
    drift=Drift(rows=8, ratio=1.0, kl=0.0, clip_fraction=0.0, effective_share=1.0),
    drift_by_staleness={},
)


def trained_with(reward: float) -> UpdateReport:
    """An update in which every step is rewarded so, or not at all."""
    spec = make_spec(rollout_steps=8)
    batch = make_batch(spec)
    rewards = np.where(batch.rewards > 0, np.float32(reward), np.float32(0))
    updates = PpoUpdate(make_model(spec), spec, make_ppo(), 1, 0, CPU)
    return replace(updates.update(replace(batch, rewards=rewards), 0.0), ratio_error=1e-6)


def signs_of(reports: Iterable[UpdateReport], spec: Spec = SPEC) -> set[str]:
    """The kinds of all signs that the last of these updates shows."""
    known = list(reports)
    return {rule.kind for rule in RULES if rule.judge(known, spec) is not None}


def many(updates: int, **numbers: Any) -> list[UpdateReport]:
    return [replace(HEALTHY, **numbers)] * updates


@pytest.mark.parametrize(
    ("sign", "numbers", "updates"),
    [
        ("no_effect", {"gradient_steps": 0}, 10),
        ("skipped", {"skipped_steps": 1}, 1),
        ("ratio", {"ratio_error": 0.01}, 1),
        ("kl", {"approx_kl": 1.25}, 1),
        ("blind_critic", {"explained_variance": 1e-7, "value_loss": 4e13}, 10),
        ("collapsed", {"entropy": 0.0004}, 20),
        ("short_sighted", {"gamma": 0.5, "episode_steps": 22.0}, 10),
        ("far_observations", {"outlier_observations": 1}, 1),
        ("far_rewards", {"outlier_rewards": 1}, 1),
    ],
)
def test_a_sign_shows_once_enough_updates_in_a_row_have_it_and_not_before(
    sign: str, numbers: dict[str, float], updates: int
) -> None:
    assert signs_of(many(30)) == set()
    assert signs_of(many(30) + many(updates, **numbers)) == {sign}
    assert signs_of(many(30) + many(updates - 1, **numbers)) == set()
    assert signs_of(many(updates, **numbers) + many(1)) == set()


def test_every_sign_is_tested_above_and_says_what_to_do() -> None:
    assert len(RULES) == 9
    texts = [rule.text(many(rule.window)) for rule in RULES]
    assert all(":" in text for text in texts)


def test_a_critic_that_explains_nothing_of_small_returns_is_left_alone() -> None:
    """Every run begins like this."""
    assert signs_of(many(30, explained_variance=-0.2, value_loss=1e4)) == set()


def test_a_policy_of_real_numbers_has_collapsed_where_it_no_longer_spreads() -> None:
    normal = 0.5 * math.log(2 * math.pi * math.e)
    spec = make_spec(action=box())
    for std, collapsed in ((0.02, set()), (0.005, {"collapsed"})):
        assert signs_of(many(20, entropy=2 * (math.log(std) + normal)), spec) == collapsed


def test_the_entropy_is_not_judged_where_a_mask_leaves_one_choice() -> None:
    parts = (Field(("x",), "vector", (2,), "float32"), Field(("action_mask",), "mask", (4,), "int8"))
    spec = make_spec(action=discrete(4), observation=ObservationSpec(parts))
    assert signs_of(many(20, entropy=0.0), spec) == set()


@pytest.mark.parametrize(
    ("gamma", "steps", "signs"),
    [
        (0.0, 1.0, set()),  # a choice and its reward, again and again
        (0.0, 100.0, {"short_sighted"}),
        (0.5, 9.0, set()),
        (0.5, 500.0, {"short_sighted"}),
        (0.8, 1e6, set()),  # the shortest that other people's recipes have
        (1.0, 1e6, set()),
    ],
)
def test_a_horizon_is_too_short_for_long_episodes_alone(gamma: float, steps: float, signs: set[str]) -> None:
    assert signs_of(many(30, gamma=gamma, episode_steps=steps)) == signs


def test_no_recipe_of_ours_is_called_short_sighted() -> None:
    recipes = sorted((Path(ops.__file__).parent / "runs").glob("*.toml"))
    gammas = {PpoConfig().gamma, *(load_toml(recipe).ppo.gamma for recipe in recipes)}
    assert len(gammas) > 3
    for gamma in gammas:
        assert signs_of(many(30, gamma=gamma, episode_steps=1000.0)) == set()


def test_the_length_of_episodes_is_counted_in_valid_rows() -> None:
    spec = make_spec(rollout_steps=8)
    ends: dict[str, Any] = {
        "terminated": [(1, 0), (6, 1)],
        "truncated": [(4, 0)],
        "invalid": [(2, 0), (5, 0), (7, 1)],
    }
    updates = PpoUpdate(make_model(spec), spec, make_ppo(gamma=0.5), 1, 0, CPU)
    report = updates.update(make_batch(spec, count=2, **ends), 0.0)
    assert (report.gamma, report.episode_steps) == (0.5, 13 / 3)
    assert updates.update(make_batch(spec, count=2), 0.0).episode_steps == 16  # none ended


class TestLog:
    """The warnings and log lines of a training."""

    @pytest.fixture
    def warnings(self) -> RunWarnings:
        return RunWarnings()

    @pytest.fixture
    def health(self, warnings: RunWarnings) -> HealthLog:
        return HealthLog(SPEC, warnings)

    def test_a_healthy_update_gives_no_warning(
        self, health: HealthLog, warnings: RunWarnings, caplog: pytest.LogCaptureFixture
    ) -> None:
        report = trained_with(1.0)
        assert report.skipped_steps == 0
        for update in range(1, 30):
            health.consider(report, update)
        assert (caplog.messages, warnings.texts, health.alarm) == ([], (), "")

    def test_a_sign_is_logged_once_and_counted_in_the_warning(
        self, health: HealthLog, warnings: RunWarnings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The square of 1e30 is no float32: not one gradient is finite."""
        report = trained_with(1e30)
        assert report.gradient_steps == 0
        assert math.isfinite(report.explained_variance)
        for update in range(5, 8):
            health.consider(report, update)
        (line,) = caplog.messages
        assert line.startswith(
            f"{report.skipped_steps} of {report.skipped_steps} gradient steps were skipped"
        )
        assert warnings.texts == (f"{line} (3 updates from 5 to 7)",)

    def test_two_signs_do_not_hide_each_other(
        self, health: HealthLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        health.consider(replace(HEALTHY, skipped_steps=1, ratio_error=0.5), 1)
        assert len(caplog.messages) == 2
        assert "by a factor of up to 1.5000" in caplog.messages[1]

    def test_a_sign_that_follows_from_a_setting_is_logged_once_in_a_run(
        self,
        health: HealthLog,
        warnings: RunWarnings,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("learner.health_log.RateLimit", partial(RateLimit, 0.0))  # as if hours went by
        for update, report in enumerate(many(30, gamma=0.5), 1):
            health.consider(report, update)
        (line,) = caplog.messages
        assert line.startswith("a --ppo.gamma of 0.5 looks 2 steps ahead, and episodes take about 200:")
        assert warnings.texts == (f"{line} (30 updates from 1 to 30)",)

    def test_ten_updates_without_an_effect_are_an_alarm_until_one_has_an_effect(
        self, health: HealthLog, warnings: RunWarnings
    ) -> None:
        alarms = []
        for update, report in enumerate([*many(12, gradient_steps=0, skipped_steps=80), HEALTHY], 1):
            health.consider(report, update)
            alarms.append(bool(health.alarm))
        assert alarms == [False] * 9 + [True] * 3 + [False]
        skipped, nothing = warnings.texts
        assert skipped.endswith("(12 updates from 1 to 12)")
        assert nothing.startswith("nothing is learnt: all gradient steps of 10 updates")
        assert nothing.endswith("(12 updates from 1 to 12)")

    def test_a_warning_stays_after_its_sign_ends_and_keeps_counting(
        self, health: HealthLog, warnings: RunWarnings
    ) -> None:
        leap = replace(HEALTHY, approx_kl=5.2)
        for update, report in enumerate([HEALTHY, leap, *many(50), leap], 1):
            health.consider(report, update)
            if update == 40:
                (text,) = warnings.texts
                assert "KL divergence of 5.2" in text
                assert text.endswith("(update 2)")
        assert warnings.texts[0].endswith("(2 updates from 2 to 53)")
