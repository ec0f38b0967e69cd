"""The seeds of actors and evaluations: SeedSequence(run seed, purpose, slot, boot).

Two actors never play the same episodes. Neither do a restarted actor and its predecessor, or two runs with
different seeds. The same run, slot and boot give the same streams again.
"""

from dataclasses import dataclass
from enum import IntEnum

from numpy.random import SeedSequence

NO_VERSION = 0  # in place of a version; versions begin at 1


class _Purpose(IntEnum):
    ENVIRONMENT = 0
    SAMPLING = 1
    EVALUATION = 2


@dataclass(frozen=True)
class ActorSeeds:
    """The seeds of one actor process."""

    environments: list[int]  # one for each; a native vector environment takes the first
    sampling: SeedSequence


def actor_seeds(run_seed: int, slot: int, boot: int, count: int, builds: int = 0) -> ActorSeeds:
    """Seeds for the `boot`-th start of the actor in `slot`, with `count` environments.

    `builds` counts how often this process built its environments before.
    """
    place = (slot, boot, builds)
    return ActorSeeds(
        environments=_integers(run_seed, _Purpose.ENVIRONMENT, place, count),
        sampling=SeedSequence(run_seed, spawn_key=(_Purpose.SAMPLING, *place)),
    )


def evaluation_seeds(run_seed: int, version: int, count: int) -> list[int]:
    """Seeds of one evaluation's environments; `version` is the version of the weights, or NO_VERSION."""
    return _integers(run_seed, _Purpose.EVALUATION, (version,), count)


def _integers(run_seed: int, purpose: _Purpose, place: tuple[int, ...], count: int) -> list[int]:
    sequence = SeedSequence(run_seed, spawn_key=(purpose, *place))
    return [int(x) >> 1 for x in sequence.generate_state(count, dtype="uint32")]
