"""Who plays which episodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.spaces.observations import Array
from tests.factories import make_vector
from workers.seeding import ActorSeeds, actor_seeds, evaluation_seeds


def fleet(run_seed: int, boot: int = 1) -> list[ActorSeeds]:
    """Four actors with three environments each."""
    return [actor_seeds(run_seed, slot, boot, 3) for slot in range(4)]


def streams(seeds: list[ActorSeeds]) -> list[bytes]:
    """The first five reset observations of each environment, as one value to compare."""

    def of_actor(actor: ActorSeeds) -> list[bytes]:
        vector = make_vector("CartPole-v1", [{}] * 3)
        first: Array = vector.reset(seed=list(actor.environments))[0]
        resets = np.stack([first] + [vector.reset()[0] for _ in range(4)], axis=1)
        return [one.tobytes() for one in resets]

    return [stream for actor in seeds for stream in of_actor(actor)]


# Known failure KF-ENV-06.
def test_no_two_environments_of_a_fleet_play_the_same_episodes() -> None:
    assert len(set(streams(fleet(7)))) == 12


def test_the_same_run_seed_plays_the_same_episodes_again() -> None:
    assert streams(fleet(7)) == streams(fleet(7))


def test_another_run_seed_plays_other_episodes() -> None:
    assert not set(streams(fleet(7))) & set(streams(fleet(8)))


def test_a_restarted_actor_does_not_play_its_old_episodes_again() -> None:
    assert not set(streams(fleet(7, boot=1))) & set(streams(fleet(7, boot=2)))


@pytest.mark.parametrize("other", [(7, 0, 2), (7, 1, 1), (8, 0, 1)], ids=["boot", "slot", "run seed"])
def test_sampling_differs_between_boots_slots_and_run_seeds(other: tuple[int, int, int]) -> None:
    def drawn(run_seed: int, slot: int, boot: int) -> list[float]:
        sampling = actor_seeds(run_seed, slot, boot, 1).sampling
        return [float(x) for x in np.random.default_rng(sampling).random(3)]

    assert drawn(7, 0, 1) == drawn(7, 0, 1)
    assert not set(drawn(7, 0, 1)) & set(drawn(*other))


def test_environments_and_sampling_have_streams_of_their_own() -> None:
    seeds = actor_seeds(7, 0, 1, 1)
    assert seeds.sampling.generate_state(1)[0] >> 1 != seeds.environments[0]


def test_a_larger_actor_begins_with_the_environments_of_a_smaller_one() -> None:
    assert actor_seeds(7, 0, 1, 8).environments[:3] == actor_seeds(7, 0, 1, 3).environments


@given(run_seed=st.integers(0, 2**32 - 1), slot=st.integers(0, 10_000), boot=st.integers(0, 10_000))
def test_seeds_are_numbers_that_every_environment_takes(run_seed: int, slot: int, boot: int) -> None:
    seeds = actor_seeds(run_seed, slot, boot, 4).environments
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)


def test_evaluation_plays_episodes_that_no_actor_trains_on() -> None:
    """Nor those of another evaluation."""
    first, second = evaluation_seeds(7, 0, 20), evaluation_seeds(7, 1, 20)
    trained = [seed for boot in range(5) for actor in fleet(7, boot) for seed in actor.environments]
    assert len({*first, *second, *trained}) == 20 + 20 + 5 * 12
    assert first == evaluation_seeds(7, 0, 20)
