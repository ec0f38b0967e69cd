"""`dppo-redis bench staleness`: return at fixed steps against the age of the data.

The age is exact in serial runs, whose behaviour policy is the learner's of k updates ago; a few points
come from real fleets. Each result is appended to a file at once: an interrupted study goes on where it was.
"""

import io
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from dppo_redis.environments.child import spaces_of
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.protocol.run_plan import plan as plan_run
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.shutdown import StopRequest
from ops.bench.results import play_missing
from ops.bench.runs import run
from ops.bench.staleness.trials import FLEET_ACTORS, Outcome, Trial, outcomes_in, plan
from ops.screens.curve import read_metrics
from ops.screens.tables import make_console
from ops.serial import make_serial


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


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parse_arguments(StudyOptions, argv, "dppo-redis bench staleness")
    stop = StopRequest().install()
    torch.set_num_threads(1)
    results = outcomes_in(options.results)
    if not options.report:
        todo = results.missing(plan(options.seeds))
        for number, outcome in enumerate(play_missing(todo, results, partial(_run, stop=stop)), start=1):
            print(f"{number}/{len(todo)} {_line(outcome)}", file=sys.stderr, flush=True)
    outcomes = results.read()
    if not outcomes:
        raise ConfigurationError(f"{options.results} holds no results")
    from ops.bench.staleness.report import write_report  # matplotlib takes a second

    print(write_report(outcomes, options.output))
    return stop.exit_status if stop.requested else ExitStatus.DONE


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
            "total_steps": trial.steps,
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
        planned = plan_run(config, spaces_of(config), serial=True)
        serial = make_serial(planned, Path(temporary), make_console(io.StringIO()), stop, trial.age or 0)
        try:
            serial.run()
        finally:
            serial.close()
        seconds = time.monotonic() - started
        staleness = serial.training.progress.staleness_mean
        return _outcome(trial, serial.summary(), staleness, Path(temporary), seconds)


def _run_fleet(trial: Trial) -> Outcome:
    assert trial.publish_every is not None
    arguments = {
        "--actors": FLEET_ACTORS,
        "--publish-every": trial.publish_every,
        "--max-staleness": trial.publish_every + 4,  # nothing is dropped: the age is what is measured
        "--total-steps": trial.steps,
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
