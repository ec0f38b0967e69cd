"""What the study tries, and what came of it. Pure, but for the file of the outcomes."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dppo_redis.protocol.config import Correction
from dppo_redis.protocol.run_plan import DISTRIBUTED_UPDATE_EPOCHS
from ops.bench.results import Results

STEPS = {"CartPole-v1": 100_000, "InvertedPendulum-v5": 100_000}
AGES = (0, 1, 2, 4, 8, 16)
CORRECTIONS: tuple[Correction, ...] = ("none", "vtrace", "decoupled", "tis")
BESIDE_ENV_ID = "CartPole-v1"  # where a few points show what else matters
FEW_AGES = (0, 2, 8)
FEW_CORRECTIONS: tuple[Correction, ...] = ("none", "decoupled")
PASSES = (3, 10)  # beside the default
LOWER_LEARNING_RATE = 3e-4
PUBLISH_EVERY = (1, 2, 5, 10)
FLEET_ACTORS = 2
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Trial:
    """One training run; serial with `age`, or a fleet with `publish_every`."""

    env_id: str
    steps: int
    seed: int
    age: int | None = None
    publish_every: int | None = None
    correction: Correction = "none"
    update_epochs: int = DISTRIBUTED_UPDATE_EPOCHS
    learning_rate: float = LEARNING_RATE


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    trial: Trial
    train_return: float  # last 100 training episodes, which old policies played
    evaluation_return: float  # greedy episodes of the newest policy
    staleness: float  # mean, of all rollouts
    drift_kl: float  # mean over all updates
    effective_share: float
    seconds: float

    @property
    def key(self) -> Trial:
        """What makes two runs the same experiment."""
        return self.trial


def _corrections(seed: int) -> Iterator[Trial]:
    """Each correction at each age. At age 0 there is nothing to correct: it is run once."""
    for env_id, steps in STEPS.items():
        for age in AGES:
            for correction in CORRECTIONS if age else CORRECTIONS[:1]:
                yield Trial(env_id, steps, seed, age, correction=correction)


def _beside(seed: int) -> Iterator[Trial]:
    """What is varied beside age and correction, a few points each: fleets, passes, smaller steps."""
    env_id, steps = BESIDE_ENV_ID, STEPS[BESIDE_ENV_ID]
    for correction in FEW_CORRECTIONS:
        for publish_every in PUBLISH_EVERY:
            yield Trial(env_id, steps, seed, publish_every=publish_every, correction=correction)
    for update_epochs in PASSES:
        for age in FEW_AGES:
            yield Trial(env_id, steps, seed, age, update_epochs=update_epochs)
    for age in FEW_AGES:
        for correction in FEW_CORRECTIONS if age else CORRECTIONS[:1]:
            yield Trial(env_id, steps, seed, age, correction=correction, learning_rate=LOWER_LEARNING_RATE)


def plan(seeds: Iterable[int]) -> list[Trial]:
    """All trials, the most wanted first: an interrupted study lacks seeds of what is varied beside."""
    return [trial for part in (_corrections, _beside) for seed in seeds for trial in part(seed)]


def outcomes_in(file: Path) -> Results[Outcome]:
    """The outcomes in a file."""
    return Results(file, _encode, _decode)


def _encode(outcome: Outcome) -> str:
    values = asdict(outcome)
    return json.dumps({**values.pop("trial"), **values})


def _decode(line: str) -> Outcome:
    values = json.loads(line)
    trial = Trial(**{field.name: values.pop(field.name) for field in fields(Trial)})
    return Outcome(trial, **values)
