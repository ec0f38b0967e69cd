"""The formulas of `docs/sizing.md` against what the product packs, plans and estimates."""

from itertools import pairwise

import pytest

from dppo_redis.protocol.run_plan import derive
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import encode_rollout, encode_weights
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.observations import ObservationSpec
from ops.bench.hostile import ENVIRONMENTS, make_rollout
from ops.bench.sizing import Costs
from tests.factories import discrete, make_config, make_spec, make_weights

OBSERVATION, ACTION = 16, 8  # bytes of CartPole's


def rollout_bytes(steps: int, environments: int) -> int:
    return steps * environments * (OBSERVATION + ACTION + 11) + environments * (OBSERVATION + 8)


def weights_bytes(inputs: int, hidden: tuple[int, ...], outputs: int) -> int:
    widths = (inputs, *hidden, outputs)
    return 4 * sum((before + 1) * after for before, after in pairwise(widths))


@pytest.mark.parametrize("steps", [16, 128, 293])
def test_a_rollout_has_the_bytes_of_the_formula(steps: int) -> None:
    packed = len(encode_rollout(make_rollout(make_spec(rollout_steps=steps, observation_size=4))))
    assert 0 < packed - rollout_bytes(steps, ENVIRONMENTS) < 400  # the names and shapes of its arrays


@pytest.mark.parametrize("hidden", [(64, 64), (500,), (32, 128, 8)])
def test_a_publication_has_the_bytes_of_the_formula(hidden: tuple[int, ...]) -> None:
    spec: Spec = make_spec(hidden=hidden, observation_size=4)
    packed = len(encode_weights(make_weights(spec)))
    assert 0 < packed - weights_bytes(4, hidden, 2) < 800


@pytest.mark.parametrize(("every", "measured"), [(1, 0.97), (2, 1.46), (5, 2.9), (10, 5.3)])
def test_the_staleness_of_two_actors_is_that_of_the_formula(every: int, measured: float) -> None:
    """The measured ones are from `dppo-redis bench article --claim publishing`."""
    config = make_config(actors=2, envs_per_actor=8, publish_every=every, max_staleness=every + 4)
    derived = derive(config, EnvironmentSpaces(ObservationSpec.vector(4), discrete(2)))
    assert derived.rollouts_per_update == 2
    assert derived.backlog_fresh == 3
    assert derived.expected_staleness == (3 + 2 - 1) / 2 - 1 + (every - 1) / 2
    assert measured == pytest.approx(derived.expected_staleness, rel=0.06)


@pytest.mark.parametrize(
    ("actors", "cores", "rate", "limit"),
    [(1, 8, 1_000, "actors"), (60, 64, 50_000, "learner"), (60, 1, 1e6 / 70, "cores")],
)
def test_a_fleet_is_as_fast_as_its_slowest_part(actors: int, cores: int, rate: float, limit: str) -> None:
    costs = Costs(actor_us=1000.0, actor_cpu_us=50.0, learner_cpu_us=20.0)
    assert costs.fleet_rate(actors, cores) == pytest.approx(rate)
    assert costs.limit(actors, cores) == limit
