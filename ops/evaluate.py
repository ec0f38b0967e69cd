"""`dppo-redis evaluate`: how good is what a run has learnt? Needs only the run's directory."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from dppo_redis.acting import ActingPolicy
from dppo_redis.arguments import parse_arguments
from dppo_redis.config import RunConfig, load_toml
from dppo_redis.environments import inspect
from dppo_redis.errors import ConfigurationError, ExitStatus, WireError
from dppo_redis.logs import configure
from dppo_redis.pacing import derive
from dppo_redis.shutdown import StopRequest
from dppo_redis.spec import RunDescription, describe_run, source_of
from dppo_redis.weights import Weights
from dppo_redis.wire import decode_weights
from ops.run_directory import CONFIG, run_in
from workers.evaluate import BEST_POLICY, evaluate


@dataclass(frozen=True)
class EvaluateOptions:
    """Play episodes with what a run has learnt."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Directory of the run"""
    episodes: int = 100
    """Episodes to play"""
    checkpoint: str = "best"
    """best (of the evaluations during training), last (checkpoint), or a checkpoint file"""
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
    run = run_in(options.run_dir)
    if run is None:
        raise ConfigurationError(f"{options.run_dir} holds no run")
    config = load_toml(options.run_dir / CONFIG)
    description = _describe(config, options)
    weights = _weights(options, run, config, description)
    sampling = np.random.default_rng(options.seed) if options.stochastic else None
    result = evaluate(ActingPolicy(weights, description.spec), description, stop, sampling)
    half = 1.96 * result.return_std / math.sqrt(result.episodes)  # 95 % interval of the mean
    summary: dict[str, Any] = {
        "run": run,
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
            f"{run}, {options.checkpoint} ({result.trained_steps:,} steps): return {result.return_mean:.2f} "
            f"± {half:.2f} (95 %), standard deviation {result.return_std:.2f}, "
            f"mean length {result.length_mean:.1f}, over {result.episodes} {how} episodes"
        )
    return ExitStatus.DONE


def _describe(config: RunConfig, options: EvaluateOptions) -> RunDescription:
    spaces = inspect(source_of(config), use_mask=config.use_action_mask)
    derived = derive(config, spaces.observation, spaces.action)
    description = describe_run(config, spaces.observation, spaces.action, derived.rollout_steps)
    join = replace(description.join, seed=options.seed, evaluation_episodes=options.episodes)
    return RunDescription(description.spec, join)


def _weights(options: EvaluateOptions, run: str, config: RunConfig, description: RunDescription) -> Weights:
    """The policy asked for.

    Raises:
        ConfigurationError: there is none, or it is damaged or of another run.
    """
    if options.checkpoint != "best":
        return _from_checkpoint(options, run, config, description)
    file = options.run_dir / BEST_POLICY
    try:
        return decode_weights(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{file}: {error.strerror}; pass --checkpoint last for the newest checkpoint"
        ) from error
    except WireError as error:
        raise ConfigurationError(f"{file} is not a policy: {error}") from error


def _from_checkpoint(
    options: EvaluateOptions, run: str, config: RunConfig, description: RunDescription
) -> Weights:
    from learner.build import build_ppo  # torch is needed for checkpoints only
    from learner.checkpoint import Checkpoints

    ppo = build_ppo(config, description, update_epochs=1)
    checkpoints = Checkpoints(options.run_dir / "checkpoints", run, description.digest, keep=1)
    snapshot = checkpoints.peek(ppo, None if options.checkpoint == "last" else Path(options.checkpoint))
    if snapshot is None:
        raise ConfigurationError(f"{checkpoints.directory} holds no checkpoint")
    progress = snapshot.progress
    return Weights(
        epoch=snapshot.epoch,
        version=snapshot.version,
        update=progress.update,
        trained_steps=progress.trained_steps,
        env_steps=snapshot.books.ledger.env_steps,
        spec=description.digest,
        arrays=ppo.acting_arrays(),
    )
