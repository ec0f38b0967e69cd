"""`dppo-redis evaluate`: how good is what a run has learnt? Needs only its directory."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from dppo_redis.arguments import parse_arguments
from dppo_redis.errors import ConfigurationError, ExitStatus, StoppedError
from dppo_redis.logs import configure
from dppo_redis.shutdown import StopRequest
from dppo_redis.spec import RunDescription
from ops.policies import load_learnt
from workers.evaluate import evaluate


@dataclass(frozen=True)
class EvaluateOptions:
    """Play episodes with what a run has learnt."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or of an export"""
    episodes: int = 100
    """Episodes to play"""
    checkpoint: str = "best"
    """best (of the evaluations during training), last (checkpoint), a checkpoint file, or an export"""
    stochastic: bool = False
    """Draw actions from the policy instead of taking the most likely one"""
    seed: int = 0
    """Seed of the episodes"""
    json: bool = False
    """Print one JSON object"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("evaluate")
    stop = StopRequest().install()
    options = parse_arguments(EvaluateOptions, argv, "dppo-redis evaluate")
    if options.episodes < 1:
        raise ConfigurationError(f"episodes: at least 1 (got {options.episodes})")
    learnt = load_learnt(options.run_dir, options.checkpoint)
    join = replace(learnt.description.join, seed=options.seed, evaluation_episodes=options.episodes)
    sampling = np.random.default_rng(options.seed) if options.stochastic else None
    try:
        result = evaluate(learnt.policy(), RunDescription(learnt.description.spec, join), stop, sampling)
    except StoppedError:
        return stop.exit_status
    half = 1.96 * result.return_std / math.sqrt(result.episodes)  # 95 % interval of the mean
    summary: dict[str, Any] = {
        "run": learnt.run,
        "checkpoint": options.checkpoint,
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "interval": [result.return_mean - half, result.return_mean + half],
        "length_mean": result.length_mean,
        "episodes": result.episodes,
        "update": result.update,
        "trained_steps": result.trained_steps,
    }
    if options.json:
        print(json.dumps(summary))
    else:
        how = "stochastic" if options.stochastic else "greedy"
        print(
            f"{learnt.run}, {options.checkpoint} ({result.trained_steps:,} steps): "
            f"return {result.return_mean:.2f} ± {half:.2f} (95 %), "
            f"standard deviation {result.return_std:.2f}, "
            f"mean length {result.length_mean:.1f}, over {result.episodes} {how} episodes"
        )
    return ExitStatus.DONE
