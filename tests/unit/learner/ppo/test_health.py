"""Warnings about updates."""

import math
from dataclasses import replace

import numpy as np
import pytest

from learner.health_log import HealthLog
from learner.ppo.update import PpoUpdate, UpdateReport
from tests.factories import CPU, make_batch, make_model, make_ppo, make_spec


def report_of(reward: float) -> UpdateReport:
    """An update in which every step is rewarded so, or not at all."""
    spec = make_spec(rollout_steps=8)
    batch = make_batch(spec)
    rewards = np.where(batch.rewards > 0, np.float32(reward), np.float32(0))
    updates = PpoUpdate(make_model(spec), spec, make_ppo(), 1, 0, CPU)
    return replace(updates.update(replace(batch, rewards=rewards), 0.0), ratio_error=1e-6)


def test_steps_that_are_skipped_are_warned_of_once_with_their_share(caplog: pytest.LogCaptureFixture) -> None:
    """The square of 1e30 is no float32: not one gradient is finite."""
    report = report_of(1e30)
    assert report.gradient_steps == 0
    assert math.isfinite(report.explained_variance)
    health = HealthLog()
    for _ in range(3):
        health.consider(report)
    (line,) = caplog.messages
    assert line.startswith(f"{report.skipped_steps} of {report.skipped_steps} gradient steps were skipped")


def test_two_warnings_do_not_hide_each_other(caplog: pytest.LogCaptureFixture) -> None:
    HealthLog().consider(replace(report_of(1e30), ratio_error=0.5))
    assert len(caplog.messages) == 2
    assert "by a factor of up to 1.5000" in caplog.messages[1]


def test_an_update_as_it_should_be_is_not_talked_about(caplog: pytest.LogCaptureFixture) -> None:
    report = report_of(1.0)
    assert report.skipped_steps == 0
    HealthLog().consider(report)
    assert caplog.messages == []
