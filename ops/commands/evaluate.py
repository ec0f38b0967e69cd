"""`dppo-redis evaluate`: measures the mean return of a run's policy. It needs only the run's directory."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from dppo_redis.errors import ExitStatus, StoppedError
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.reports import Evaluation, PolicyScore
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.logs import answer, configure
from dppo_redis.service.shutdown import StopRequest
from ops.policies.intervals import half_width
from ops.policies.limits import under_limit
from ops.policies.load_policy import LoadedPolicy, check_playing, load_policy
from ops.policies.which_run import find_run_directory
from ops.screens.tables import describe_metrics
from workers.episodes import evaluate
from workers.seeding import NO_VERSION, evaluation_seeds


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure the mean return of a trained policy."""

    run_dir: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")] = None
    """Directory of a run or export, or the name of a run in runs/"""
    run: str | None = None
    """Name of a run in runs/, instead of RUN_DIR"""
    episodes: int = 100
    """Episodes to play"""
    checkpoint: str = "best"
    """Which policy: best (of the evaluations), last (checkpoint), a checkpoint file, or an export"""
    stochastic: bool = False
    """Draw actions from the policy instead of taking the most likely one"""
    seed: int = 0
    """Seed of the episodes; with the same seed all policies play the same episodes"""
    json: bool = False
    """Print the result as one JSON object"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("evaluate")
    stop = StopRequest().install()
    options = parse_arguments(EvaluateOptions, argv, "dppo-redis evaluate")
    check_playing(options.episodes, options.seed)
    directory = find_run_directory(options.run_dir, options.run)
    try:
        loaded = load_policy(directory, options.checkpoint, stop)
        result = play(loaded, options, stop)
    except StoppedError:
        return stop.exit_status
    half = half_width(result.return_std, result.episodes)
    mean = result.return_mean
    score = PolicyScore(
        run=loaded.run,
        checkpoint=loaded.checkpoint,
        return_mean=mean,
        return_std=result.return_std,
        interval=None if half is None else (mean - half, mean + half),
        length_mean=result.length_mean,
        episodes=result.episodes,
        update=result.update,
        trained_steps=result.trained_steps,
        metrics=result.metrics,
    )
    if options.json:
        answer(json.dumps(to_json(score)))
    else:
        mode = "stochastic" if options.stochastic else "greedy"
        interval = "" if half is None else f", 95 % interval {mean - half:.2f} to {mean + half:.2f}"
        episodes = "1 episode" if result.episodes == 1 else f"{result.episodes} episodes"
        if not result.complete:
            episodes = f"{result.episodes} of {result.planned} episodes, as the others did not end"
        metrics = f", {describe_metrics(result.metrics)}" if result.metrics else ""
        answer(
            f"{loaded.run}, {loaded.checkpoint} ({result.trained_steps:,} steps): "
            f"return {result.return_mean:.2f}{interval}, "
            f"standard deviation {result.return_std:.2f}, "
            f"mean length {result.length_mean:.1f}{metrics}, over {episodes}, {mode}"
        )
    return ExitStatus.DONE


def play(loaded: LoadedPolicy, options: EvaluateOptions, stop: StopRequest) -> Evaluation:
    """Play episodes that are the same for all policies, and that did not help to choose the best policy.

    Raises:
        StoppedError: a stop was requested meanwhile.
        EnvironmentBrokenError: the environment raised.
    """
    seeds = evaluation_seeds(options.seed, NO_VERSION, options.episodes)
    sampling = np.random.default_rng(options.seed) if options.stochastic else None
    if stop.requested:
        raise StoppedError("stopped before the first episode")
    with under_limit(loaded.description.join, stop) as calls:
        return evaluate(loaded.policy(), loaded.description, stop, sampling, seeds, calls)
