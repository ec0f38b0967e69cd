"""Old data on purpose: the behaviour policy of a serial run is exactly k updates old."""

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dppo_redis.protocol.reports import UpdateRecord
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.shutdown import StopRequest
from ops.screens.curve import read_metrics
from ops.screens.tables import make_console
from ops.serial import make_serial
from ops.serial_sampling import PolicyHistory
from tests.factories import make_config, make_policy, make_spec, spaces_of

_CONFIG = make_config(
    env_id="CartPole-v1",
    total_steps=320,
    envs_per_actor=2,
    ppo={"batch_steps": 64, "minibatch_size": 32},
    evaluation={"episodes": 1, "interval_s": 86_400},
)


@pytest.mark.parametrize("age", [0, 1, 3])
def test_the_behaviour_policy_is_the_one_of_that_many_updates_ago_or_the_first(age: int) -> None:
    policies = [make_policy(make_spec()) for _ in range(6)]
    event_log = PolicyHistory(age)
    behaviour = [event_log.behaviour(newest) for newest in policies]
    assert behaviour == [policies[max(0, update - age)] for update in range(6)]


def train(directory: Path, age: int) -> tuple[Tensor, list[UpdateRecord]]:
    """Train about five updates; returns the weights and the rows of metrics.csv."""
    serial = make_serial(
        plan(_CONFIG, spaces_of(_CONFIG), serial=True),
        directory,
        make_console(io.StringIO()),
        StopRequest(),
        age,
    )
    serial.run()
    serial.close()
    weights = torch.cat(
        [parameter.detach().flatten() for parameter in serial.training.ppo.model.parameters()]
    )
    return weights, read_metrics(directory)


def test_a_serial_run_trains_on_data_of_the_requested_age_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    weights, rows = train(tmp_path / "first", age=2)
    again, _ = train(tmp_path / "again", age=2)
    fresh, fresh_rows = train(tmp_path / "fresh", age=0)
    assert len(rows) > 3
    assert torch.equal(weights, again)
    assert not torch.equal(weights, fresh)
    assert [row.staleness_max for row in rows] == [0, 1] + [2] * (len(rows) - 2)
    assert {row.staleness_max for row in fresh_rows} == {0}
    assert max(row.drift_kl for row in fresh_rows) < 1e-6
    assert min(row.drift_kl for row in rows[1:]) > 1e-6
