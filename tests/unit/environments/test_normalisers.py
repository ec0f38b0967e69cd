"""Wrappers that normalise by statistics of their own are refused wherever they stand."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector

from dppo_redis.environments.make import make_single, make_vector
from dppo_redis.errors import ConfigurationError
from tests.envs.episodes import FixedLength
from tests.factories import TERMINATING, source


class Centred(wrappers.NormalizeObservation[Any, Any, Any]):
    pass


class Scored(wrappers.NormalizeReward[Any, Any]):
    pass


class Holds(FixedLength):
    """Not a wrapper: it plays in another environment."""

    def __init__(self, inner: gymnasium.Env[Any, Any]) -> None:
        super().__init__(3)
        self.inners = [inner]


class Constant(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Centres by numbers that are always the same: that is what every actor has."""

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation - np.float32(0.5), np.float32)


MADE: dict[str, tuple[Any, str]] = {
    "observations": (lambda: wrappers.NormalizeObservation(FixedLength(3)), "ppo.normalise_observations"),
    "rewards": (lambda: wrappers.NormalizeReward(FixedLength(3)), "ppo.normalise_returns"),
    "subclass": (lambda: Centred(FixedLength(3)), "ppo.normalise_observations"),
    "other subclass": (lambda: Scored(FixedLength(3)), "ppo.normalise_returns"),
    "below": (lambda: wrappers.TimeLimit(Constant(Centred(FixedLength(3))), 3), "ppo.normalise_observations"),
    "held": (lambda: Holds(Scored(FixedLength(3))), "ppo.normalise_returns"),
}
NOT: Any = lambda: wrappers.TimeLimit(Constant(FixedLength(3)), 3)  # noqa: E731
SINGLE: Any = lambda: FixedLength(3)  # noqa: E731
for name, (make, _) in MADE.items():
    gymnasium.register(f"normalised/{name.replace(' ', '')}-v0", entry_point=make)


def make_native(num_envs: int, **_: Any) -> Any:
    envs = SyncVectorEnv([lambda: FixedLength(3)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return vector.NormalizeReward(envs)


NATIVE: Any = make_native
gymnasium.register("normalised/native-v0", entry_point=SINGLE, vector_entry_point=NATIVE)
gymnasium.register("normalised/not-v0", entry_point=NOT)


@pytest.mark.parametrize("name", MADE)
def test_a_normaliser_inside_the_constructor_is_refused_with_the_setting_to_use(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_single(source(f"normalised/{name.replace(' ', '')}-v0"))
    assert MADE[name][1] in str(caught.value)
    assert "Normalize" in str(caught.value)


@pytest.mark.parametrize("wrapper", ["NormalizeReward", "tests.unit.environments.test_normalisers:Scored"])
def test_a_normaliser_in_the_configuration_is_refused_as_a_setting(wrapper: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"wrappers: {wrapper}: .*NormalizeReward.*normalise_returns"
    ):
        make_single(source(TERMINATING, wrapper))


def test_a_normaliser_of_a_native_vector_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="normalise_returns"):
        make_vector(source("normalised/native-v0"), 2, "auto")


def test_wrappers_without_statistics_are_allowed() -> None:
    make_single(source("normalised/not-v0")).close()
    make_single(source(TERMINATING, "TransformReward(func=None)")).close()
