"""`dppo-redis bench staleness`: return at fixed steps against the age of the data.

The age is exact in serial runs, whose behaviour policy is the learner's of k updates ago; a few points
come from real fleets. Each result is appended to a file at once: an interrupted study goes on where it was.
"""

import io
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

import torch

from dppo_redis.arguments import parse_arguments
from dppo_redis.config import Correction, RunConfig
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.pacing import DISTRIBUTED_UPDATE_EPOCHS
from dppo_redis.reports import RunSummary
from dppo_redis.shutdown import StopRequest
from ops.bench.runs import run
from ops.plot import read_metrics
from ops.serial import make_serial
from ops.view import Screen

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


@dataclass(frozen=True)
class StudyOptions:
    """Return at fixed steps against the age of the data, for each correction; goes on where it was."""

    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of each trial"""
    results: Path = Path("ops/bench/results/staleness.jsonl")
    """JSON lines, one for each finished trial; trials in it are not repeated"""
    output: Path = Path("ops/bench")
    """Directory of STALENESS.md and of figures/staleness.png"""
    report: bool = False
    """Run nothing; write the report of what there is"""


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


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parse_arguments(StudyOptions, argv, "dppo-redis bench staleness")
    stop = StopRequest().install()
    torch.set_num_threads(1)
    outcomes = load(options.results)
    if not options.report:
        todo = [trial for trial in plan(options.seeds) if trial not in outcomes]
        for index, trial in enumerate(todo):
            outcome = _run(trial, stop)
            if outcome is None:
                break
            outcomes[trial] = outcome
            _append(options.results, outcome)
            print(f"{index + 1}/{len(todo)} {_line(outcome)}", file=sys.stderr, flush=True)
    if not outcomes:
        raise ConfigurationError(f"{options.results} holds no results")
    from ops.bench.staleness_report import write_report  # matplotlib takes a second

    print(write_report(outcomes.values(), options.output))
    return stop.exit_status if stop.requested else ExitStatus.DONE


def load(file: Path) -> dict[Trial, Outcome]:
    """The outcomes in a results file; none where there is no file."""
    if not file.exists():
        return {}
    outcomes = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        trial = Trial(**{field.name: values.pop(field.name) for field in fields(Trial)})
        outcomes[trial] = Outcome(trial, **values)
    return outcomes


def _append(file: Path, outcome: Outcome) -> None:
    values = asdict(outcome)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**values.pop("trial"), **values}) + "\n")


def _line(outcome: Outcome) -> str:
    trial = {name: value for name, value in asdict(outcome.trial).items() if value is not None}
    return f"{trial} return {outcome.train_return:.0f}, {outcome.seconds:.0f} s"


def _run(trial: Trial, stop: StopRequest) -> Outcome | None:
    """Run a trial; None where a stop was asked for."""
    outcome = _run_serial(trial, stop) if trial.publish_every is None else _run_fleet(trial)
    return None if stop.requested else outcome


def _run_serial(trial: Trial, stop: StopRequest) -> Outcome:
    """In this process: starting one would take as long as training does."""
    started = time.monotonic()
    config = RunConfig.model_validate(
        {
            "env_id": trial.env_id,
            "env_steps": trial.steps,
            "seed": trial.seed,
            "ppo": {
                "correction": trial.correction,
                "update_epochs": trial.update_epochs,
                "learning_rate": trial.learning_rate,
            },
            "evaluation": {"interval_s": 86_400},  # once before and once after training
        }
    )
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as temporary:
        serial = make_serial(config, Path(temporary), Screen(io.StringIO()), stop, trial.age or 0)
        try:
            serial.run()
        finally:
            serial.metrics.close()
            serial.sampling.close()
        seconds = time.monotonic() - started
        staleness = serial.progress.staleness_mean
        return _outcome(trial, serial.summary(seconds), staleness, Path(temporary), seconds)


def _run_fleet(trial: Trial) -> Outcome:
    assert trial.publish_every is not None
    arguments = {
        "--actors": FLEET_ACTORS,
        "--publish-every": trial.publish_every,
        "--max-staleness": trial.publish_every + 4,  # nothing is dropped: the age is what is measured
        "--env-steps": trial.steps,
        "--seed": trial.seed,
        "--ppo.correction": trial.correction,
        "--ppo.update-epochs": trial.update_epochs,
        "--ppo.learning-rate": trial.learning_rate,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dppo-bench-") as temporary:
        directory = Path(temporary) / "run"
        summary = run(["train", trial.env_id, *words], directory)
        assert summary.staleness is not None  # of a fleet
        return _outcome(trial, summary, summary.staleness.mean, directory, time.monotonic() - started)


def _outcome(trial: Trial, summary: RunSummary, staleness: float, directory: Path, seconds: float) -> Outcome:
    records = read_metrics(directory)
    return Outcome(
        trial,
        train_return=summary.train_return_mean or 0.0,
        evaluation_return=summary.return_mean or 0.0,
        staleness=round(staleness, 3),
        drift_kl=round(fmean(record.drift_kl for record in records), 6),
        effective_share=round(fmean(record.drift_effective_share for record in records), 4),
        seconds=round(seconds, 1),
    )
