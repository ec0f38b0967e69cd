"""Each copy of an environment knows its number, and builds with it."""

import os
from typing import Any

import pytest

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.make import make_single, make_vector
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.spec import EnvironmentSource
from ops.serial_sampling import make_sampling
from tests.factories import describe
from workers.build import build_collector

NUMBERED = "tests.envs:Numbered-v0"


def test_texts_are_filled_in_at_any_depth_and_all_else_stays() -> None:
    given: dict[str, Any] = {
        "port": "50{slot}{copy}",
        "nested": {"{slot}": ["{role}", ("{copy}", 1)], "other": {"deep": "{role}-{slot}-{copy}"}},
        "braces": "{0} {} {{slot}} {Slot} { copy } {seed}",
        "number": 3,
        "plain": "text",
    }
    source = EnvironmentSource("CartPole-v1", given)
    assert CopyNumber("actor", 2, 7).of(source).env_kwargs == {
        "port": "5027",
        "nested": {"{slot}": ["actor", ("7", 1)], "other": {"deep": "actor-2-7"}},
        "braces": "{0} {} {2} {Slot} { copy } {seed}",
        "number": 3,
        "plain": "text",
    }
    assert source.env_kwargs["port"] == "50{slot}{copy}"


def seen(environment: Any) -> tuple[str, str]:
    """The argument, and the variables, that it was built with."""
    return environment.unwrapped.label, environment.unwrapped.variables


def source() -> EnvironmentSource:
    return EnvironmentSource(NUMBERED, {"label": "{role}/{slot}/{copy}"})


def test_a_copy_that_is_only_inspected_has_the_role_look() -> None:
    assert seen(make_single(source())) == ("look/0/0", "look/0/0")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_copies_of_a_process_are_counted(vectorization: Any) -> None:
    vector: Any = make_vector(source(), 3, vectorization, number=CopyNumber("actor", 4))
    try:
        wanted = tuple(f"actor/4/{n}" for n in range(3))
        assert vector.call("described") == tuple(f"{one} {one}" for one in wanted)
    finally:
        vector.close()


def test_an_actor_builds_its_own_numbers() -> None:
    config = RunConfig(env_id=NUMBERED, env_kwargs={"label": "{role}/{slot}/{copy}"}, envs_per_actor=2)
    description = describe(config)
    assert description.spec.environment.env_kwargs["label"] == "{role}/{slot}/{copy}"
    collector: Any = build_collector(description, None, slot=5, boot=1, builds=0)
    assert [seen(one)[0] for one in collector.environments.vector.envs] == ["actor/5/0", "actor/5/1"]
    assert os.environ["DPPO_COPY"] == "1"
    collector.close()


def test_the_baseline_is_a_role_of_its_own() -> None:
    config = RunConfig(env_id=NUMBERED, env_kwargs={"label": "{role}"}, envs_per_actor=1)
    sampling = make_sampling(config, describe(config))
    collector = sampling._collector._build(0)  # type: ignore[attr-defined]
    assert seen(collector.environments.vector.envs[0])[0] == "serial"
    collector.close()
