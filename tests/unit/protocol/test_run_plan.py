"""The plan of a run before it starts."""

import re
from dataclasses import FrozenInstanceError
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from dppo_redis.environments.make import make_single
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.run_plan import RunPlan, describe_started, plan, refuse_another_plan
from dppo_redis.protocol.spec import EnvironmentSource
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations, describe_spaces
from dppo_redis.spaces.observations import ObservationSpec
from ops.commands.serial import main as serial
from tests.factories import discrete, make_config

ROOT = Path(__file__).parents[3]
SPACES = EnvironmentSpaces(ObservationSpec.vector(4), discrete(2))
NESTED = describe_spaces(
    Dict({"screen": Box(0, 255, (8, 9), np.uint8), "score": Discrete(3)}),
    Dict({"a": Discrete(2), "b": Box(-1, np.inf, (3,))}),
)
STARTED: dict[str, Any] = {
    "env_id": "Lander-v0",
    "actors": 2,
    "envs_per_actor": 8,
    "ppo": {"batch_steps": 2048},
}


def sent(spaces: EnvironmentSpaces) -> EnvironmentSpaces:
    """A value as another process receives it."""
    received: EnvironmentSpaces = ForkingPickler.loads(ForkingPickler.dumps(spaces))
    return received


def planned(*, serial: bool = False, **knobs: Any) -> RunPlan:
    return plan(make_config(**{**STARTED, **knobs}), SPACES, serial=serial)


def test_a_plan_holds_what_it_was_made_from_and_what_follows() -> None:
    config = make_config(**STARTED)
    found = plan(config, SPACES, serial=False)
    assert (found.config, found.spaces) == (config, SPACES)
    assert found.derived.rollout_steps == found.description.spec.rollout_steps == 128
    assert found.description.spec.environment == EnvironmentSource("Lander-v0")
    assert (found.description.spec.observation, found.description.spec.action) == (
        SPACES.observation,
        SPACES.action,
    )


@pytest.mark.parametrize(
    ("knobs", "most"),
    [
        ({}, 3),
        ({"open_rollouts": 0}, 0),
        ({"open_rollouts": 9}, 3),
        ({"max_staleness": 3}, 2),
        ({"max_staleness": 1}, 1),
        ({"open_rollouts": 9, "max_staleness": 10}, 9),
        ({"publish_every": 2}, 2),
        ({"actors": 8}, 3),
    ],
)
def test_an_actor_opens_no_more_rollouts_than_the_staleness_limit_allows(
    knobs: dict[str, Any], most: int
) -> None:
    """Used latest after those that were unsettled or open in any actor when it was opened."""
    found = planned(**knobs)
    assert found.description.join.open_rollouts == most
    actors, derived = found.config.actors, found.derived
    before = derived.backlog_high - 1 + actors * max(1, most)
    latest = before // derived.rollouts_per_update + found.config.publish_every - 1
    assert latest <= found.config.max_staleness


def test_environments_that_step_one_after_another_open_one_rollout_and_old_actors_may_join() -> None:
    found = planned(vectorization="sync", max_staleness=1)
    assert "open_rollouts" not in found.description.to_text()


@pytest.mark.parametrize("spaces", [SPACES, NESTED], ids=["plain", "nested"])
def test_a_plan_is_made_of_values_alone(spaces: EnvironmentSpaces) -> None:
    """So the same configuration and spaces give the same plan, in any process."""
    config = make_config(**STARTED, seed=7)
    again = plan(make_config(**STARTED, seed=7), sent(spaces), serial=False)
    assert plan(config, spaces, serial=False) == again
    with pytest.raises(FrozenInstanceError):
        again.config = config  # type: ignore[misc]


def test_spaces_pass_to_another_process_unchanged_also_after_use() -> None:
    assert NESTED.observation.row_bytes > 0  # computes what is cached
    arrived = sent(NESTED)
    assert arrived == NESTED
    assert arrived.observation.row_dtype == NESTED.observation.row_dtype


def test_a_serial_run_is_planned_as_one_actor_with_fresh_data() -> None:
    fleet, alone = planned(), planned(serial=True)
    assert (fleet.derived.rollout_steps, alone.derived.rollout_steps) == (128, 256)
    assert (fleet.derived.update_epochs, alone.derived.update_epochs) == (6, 10)
    assert alone.description.spec.rollout_steps == 256


@pytest.mark.parametrize("serial", [False, True])
def test_the_configuration_as_used_gives_the_same_plan_again(serial: bool) -> None:
    first = planned(serial=serial, lock_step=serial)
    again = plan(first.config_as_used, SPACES, serial=serial)
    assert (again.derived, again.description) == (first.derived, first.description)
    assert describe_started(first.config_as_used, SPACES) == first.description


def test_settings_that_cannot_work_together_are_refused_while_planning() -> None:
    with pytest.raises(ConfigurationError, match="set max_staleness to 5 or more"):
        planned(actors=5, rollout_steps=256, max_staleness=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lock_step": True}, "keeps its lock-step mode"),
        ({"init_from": "elsewhere"}, "say how a run begins"),
        ({"ppo": {"batch_steps": 2048, "initial_std": 0.4}}, "say how a run begins"),
        ({"rollout_steps": 64}, "rollout_steps: 128 != 64"),
        ({"network": {"hidden": [32]}}, "network: .* != "),
        ({"env_kwargs": {"wind": 1.0}}, "environment: .* != "),
        (
            {"ppo": {"batch_steps": 2048, "normalise_observations": True}},
            "normalise_observations: False != True",
        ),
    ],
    ids=str,
)
def test_a_resumed_run_keeps_what_its_checkpoint_was_made_for(change: dict[str, Any], reason: str) -> None:
    stored = planned().config_as_used
    now = planned(**{"rollout_steps": stored.rollout_steps, **change})
    with pytest.raises(ConfigurationError, match=reason):
        refuse_another_plan(stored, SPACES, now)


def test_a_resumed_run_with_other_spaces_is_refused() -> None:
    stored = planned().config_as_used
    other = EnvironmentSpaces(describe_observations(Box(-1, 1, (5,))), describe_actions(Discrete(2)))
    with pytest.raises(ConfigurationError, match=r"observation: .* != "):
        refuse_another_plan(stored, other, plan(stored, SPACES, serial=False))


@pytest.mark.parametrize(
    "change",
    [{}, {"actors": 3}, {"total_steps": 9}, {"target_return": 1.0}, {"ppo": {"learning_rate": 1e-4}}],
    ids=str,
)
def test_a_resumed_run_may_change_its_fleet_its_goal_and_its_learning(change: dict[str, Any]) -> None:
    stored = planned().config_as_used
    refuse_another_plan(stored, SPACES, planned(**{"rollout_steps": stored.rollout_steps, **change}))


def test_a_resumed_lock_step_run_keeps_its_fleet() -> None:
    stored = planned(lock_step=True).config_as_used
    same: dict[str, Any] = {"lock_step": True, "rollout_steps": stored.rollout_steps}
    refuse_another_plan(stored, SPACES, planned(**same, total_steps=9))
    for change in ("actors", "envs_per_actor", "segment_updates"):
        with pytest.raises(ConfigurationError, match="keeps its lock-step mode"):
            refuse_another_plan(stored, SPACES, planned(**{**same, change: 4}))


def test_serial_inspects_its_environment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = tmp_path / "looked"  # it does so in a child

    def counted(source: EnvironmentSource, *more: Any) -> Any:
        with looked.open("a") as file:
            file.write(f"{source.env_id}\n")
        return make_single(source, *more)

    monkeypatch.setattr("dppo_redis.environments.inspect.make_single", counted)
    knobs = "--total-steps 64 --rollout-steps 8 --ppo.batch-steps 64 --evaluation.episodes 1"
    serial(["CartPole-v1", "--run-dir", str(tmp_path / "run"), "--json", *knobs.split()])
    assert looked.read_text() == "CartPole-v1\n"


def test_one_module_makes_environments() -> None:
    holders = {
        file.relative_to(ROOT).as_posix()
        for folder in ("dppo_redis", "workers", "learner", "ops")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"gymnasium\.make(_vec)?\(", file.read_text(encoding="utf-8"))
    }
    assert holders == {"dppo_redis/environments/make.py"}
