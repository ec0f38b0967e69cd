"""`dppo-redis bench uneven`: its environment, its measure and what it refuses."""

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.uneven.alone import rate_alone
from ops.bench.uneven.command import main
from ops.bench.uneven.environment import EXPECTED_S


def test_the_measure_is_the_expected_pause_and_the_time_that_is_spent_besides() -> None:
    """However many slow steps the sample happens to have."""
    assert pytest.approx(0.00695) == EXPECTED_S
    assert 0.2 / EXPECTED_S < rate_alone(0.3) < 1 / EXPECTED_S


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--repeats 0", "repeats: from 1 to 100"),
        ("--actors 65", "actors: from 1 to 64"),
        ("--envs-per-actor 0", "envs_per_actor: from 1 to 256"),
        ("--steps 10", "steps: at least 10240, five updates"),
        ("--open-rollouts 1 65", "open_rollouts: from 1 to 64"),
    ],
)
def test_an_impossible_size_is_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        main(words.split())
