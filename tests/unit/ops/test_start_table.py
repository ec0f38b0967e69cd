"""What a person reads before a run starts."""

from typing import Any

import pytest
from rich.console import Console

from dppo_redis.protocol.pacing import derive
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.observations import ObservationSpec
from ops.screens.tables import derived_table
from tests.factories import discrete, make_config


def lines(*, serial: bool = False, **knobs: Any) -> str:
    config = make_config(**knobs)
    derived = derive(config, EnvironmentSpaces(ObservationSpec.vector(4), discrete(2)), serial=serial)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(derived_table(config, derived, serial=serial))
    return capture.get()


def test_a_fleet_reads_how_old_its_data_will_be_and_where_actors_wait() -> None:
    text = lines(actors=4, envs_per_actor=8, max_staleness=4, ppo={"batch_steps": 2048})
    assert "1.0 updates (limit 4)" in text
    assert "5 rollouts, 8 when the learner waits" in text


def test_one_mark_is_named_once() -> None:
    text = lines(actors=4, envs_per_actor=8, max_staleness=1, ppo={"batch_steps": 2048})
    assert "│ 4 rollouts " in text
    assert "when the learner waits" not in text


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize(("memory", "normalised"), [("gru", False), ("gru", True), ("none", False)])
def test_shared_layers_with_raw_values_are_advised_against(
    memory: str, normalised: bool, serial: bool
) -> None:
    knobs: dict[str, Any] = {"rollout_steps": 8, "network": {"memory": memory}}
    text = lines(serial=serial, **knobs, ppo={"normalise_returns": normalised, "minibatch_size": 8})
    assert ("--ppo.normalise-returns" in text) == (memory == "gru" and not normalised)
