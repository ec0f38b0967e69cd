"""The table and the advice at a run's start."""

from typing import Any

import pytest
from rich.console import Console

from dppo_redis.protocol.run_plan import derive
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.observations import ObservationSpec
from ops.screens.start_advice import start_advice
from ops.screens.start_table import derived_table
from tests.factories import discrete, make_config


def lines(*, serial: bool = False, **knobs: Any) -> str:
    config = make_config(**knobs)
    derived = derive(config, EnvironmentSpaces(ObservationSpec.vector(4), discrete(2)), serial=serial)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(derived_table(config, derived, serial=serial))
    return capture.get()


def test_the_table_of_a_fleet_has_the_expected_staleness_and_the_backlog_limits() -> None:
    text = lines(actors=4, envs_per_actor=8, max_staleness=4, ppo={"batch_steps": 2048})
    assert "1.0 updates (limit 4)" in text
    assert "5 rollouts, 8 when the learner waits" in text


def test_equal_backlog_limits_are_shown_once() -> None:
    text = lines(actors=4, envs_per_actor=8, max_staleness=1, ppo={"batch_steps": 2048})
    assert "│ 4 rollouts " in text
    assert "when the learner waits" not in text


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize(("memory", "normalised"), [("gru", False), ("gru", True), ("none", False)])
def test_advice_for_shared_layers_is_to_normalise_returns(
    memory: str, normalised: bool, serial: bool
) -> None:
    knobs: dict[str, Any] = {"rollout_steps": 8, "network": {"memory": memory}}
    text = lines(serial=serial, **knobs, ppo={"normalise_returns": normalised, "minibatch_size": 8})
    assert ("--ppo.normalise-returns" in text) == (memory == "gru" and not normalised)


def advice(*, serial: bool = False, **knobs: Any) -> list[str]:
    config = make_config(**knobs)
    derived = derive(config, EnvironmentSpaces(ObservationSpec.vector(4), discrete(2)), serial=serial)
    return list(start_advice(config, derived, serial=serial))


@pytest.mark.parametrize("serial", [False, True])
def test_usual_settings_get_no_advice(serial: bool) -> None:
    assert advice(serial=serial) == []
    assert advice(serial=serial, lock_step=True, max_staleness=0) == []
    assert advice(serial=serial, rollout_steps=4, ppo={"batch_steps": 512}) == []


def test_advice_names_a_staleness_limit_without_effect() -> None:
    (text,) = advice(lock_step=True, max_staleness=3)
    assert text == "--lock-step: all data has staleness 0, so --max-staleness 3 has no effect"


def test_advice_says_that_a_minibatch_larger_than_the_batch_is_the_only_gradient_step() -> None:
    (text,) = advice(ppo={"batch_steps": 2048, "minibatch_size": 4096})
    assert text == "--ppo.minibatch-size 4096: an update has 2048 rows, so a pass is one gradient step"


def test_advice_for_rollouts_of_a_few_steps_names_the_setting() -> None:
    (text,) = advice(actors=64, envs_per_actor=8, max_staleness=8)
    assert text == (
        "rollouts have only 4 steps, as 512 environments share a batch of 2048: set --ppo.batch-steps 32768"
    )
    (text,) = advice(actors=8, envs_per_actor=64)
    assert text.endswith("--ppo.batch-steps 32768, or --envs-per-actor 4")
    (text,) = advice(serial=True, envs_per_actor=2048)
    assert text.startswith("rollouts have only 1 step, as 2048 environments share a batch of 2048:")
    assert text.endswith(" or --envs-per-actor 32")
    assert advice(actors=8, envs_per_actor=4) == []


def test_the_advised_value_removes_the_advice() -> None:
    assert advice(actors=64, envs_per_actor=8, max_staleness=8, ppo={"batch_steps": 32768}) == []
    assert advice(actors=8, envs_per_actor=4) == []
    assert advice(serial=True, envs_per_actor=32) == []
