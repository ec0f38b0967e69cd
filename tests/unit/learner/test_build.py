"""The network and optimiser that follow from a run's configuration."""

import math

import numpy as np
import pytest

from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.observations import Array
from learner.build import build_ppo
from tests.factories import box, discrete, make_config, make_description, make_spec


def weights(spec: Spec, **ppo: float) -> dict[str, Array]:
    return build_ppo(make_config(ppo=ppo), make_description(spec), update_epochs=1).acting_arrays()


def test_real_valued_actions_start_with_the_standard_deviation_that_is_asked_for() -> None:
    spec = make_spec(action=box())
    np.testing.assert_array_equal(weights(spec)["log_std"], 0)
    np.testing.assert_allclose(weights(spec, initial_std=0.4)["log_std"], math.log(0.4), rtol=1e-6)


@pytest.mark.parametrize("action", [box(), discrete(2)], ids=["box", "discrete"])
def test_nothing_else_depends_on_it(action: ActionSpec) -> None:
    spec = make_spec(action=action)
    one, other = weights(spec), weights(spec, initial_std=0.4)
    assert set(one) == set(other)
    for name in set(one) - {"log_std"}:
        np.testing.assert_array_equal(one[name], other[name])
