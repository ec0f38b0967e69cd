"""Chooses and loads the policy of a run, for `evaluate`, `enjoy`, `export` and `dppo_redis.load`."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dppo_redis.artefacts.best_policy import read_best
from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.exports import adapt, is_export, read_export
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.artefacts.spaces_file import describe_stored
from dppo_redis.environments.child import describe, inspect_in_child, spaces_of
from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.spec import RunDescription, Spec, join_settings
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.shutdown import StopRequest
from ops.fleet.run_directory import run_in
from ops.policies.which_run import not_a_run

_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class LoadedPolicy:
    """A run's environment and one policy for it."""

    run: str
    description: RunDescription
    weights: Weights
    checkpoint: str = "best"  # best, last, or the path of a file

    def policy(self) -> ActingPolicy:
        """Build the acting policy.

        Raises:
            ConfigurationError: the weights do not fit the spec.
        """
        try:
            return ActingPolicy(self.weights, self.description.spec)
        except WireError as error:
            raise ConfigurationError(f"the policy of {self.run} does not fit its spec: {error}") from error


def check_playing(episodes: int, seed: int) -> None:
    """Refuse a number of episodes or a seed that is too small.

    Raises:
        ConfigurationError: names the option.
    """
    if episodes < 1:
        raise ConfigurationError(f"episodes: must be at least 1 (got {episodes})")
    if seed < 0:
        raise ConfigurationError(f"seed: must be at least 0 (got {seed})")


def load_policy(
    directory: Path, checkpoint: str, stop: StopRequest | None = None, *, to_play: bool = True
) -> LoadedPolicy:
    """Load the policy of a run's directory or of an export.

    `checkpoint` is best (of the evaluations during training; of a run without a complete one, the newest
    checkpoint), last (the newest checkpoint), a checkpoint file of the run, or the directory of an export
    that fits it. With `to_play` the function inspects the environment that is installed here; otherwise the
    environment need not be installed.

    Raises:
        EnvironmentBrokenError, StoppedError: the inspection of the environment failed or was stopped.
        ConfigurationError: there is no policy, or it is damaged, or belongs to another run or spec.
    """
    if is_export(directory):
        return _from_export(directory, checkpoint, stop, to_play=to_play)
    run = run_in(directory)
    if run is None:
        raise not_a_run(directory)
    config = load_toml(RunFiles(directory).config)
    inspect = partial(spaces_of, stop=stop)
    description = describe(config, stop) if to_play else describe_stored(directory, config, inspect)
    if checkpoint == "best" and _has_no_best(directory):
        _log.warning("this run has no best policy, as no evaluation is complete: using its last checkpoint")
        checkpoint = "last"
    if checkpoint == "best":
        weights = read_best(directory, description.spec)
    elif Path(checkpoint) == RunFiles(Path(checkpoint).parent).best_policy:
        weights = read_best(Path(checkpoint).parent, description.spec)
    elif is_export(Path(checkpoint)):
        export = read_export(Path(checkpoint))
        weights = adapt(export.weights, export.spec, description.spec, f"{checkpoint} is an export")
    else:
        weights = _from_checkpoint(directory, checkpoint, run, config, description)
    return LoadedPolicy(run, description, weights, checkpoint)


def _has_no_best(directory: Path) -> bool:
    files = RunFiles(directory)
    return not files.best_policy.exists() and any(files.checkpoints.glob("*"))


def _from_export(
    directory: Path, checkpoint: str, stop: StopRequest | None, *, to_play: bool
) -> LoadedPolicy:
    if checkpoint != "best":
        raise ConfigurationError(f"{directory} is an export and holds one policy: leave out --checkpoint")
    export = read_export(directory)
    description = _describe_export(export.spec, stop, to_play=to_play)
    weights = adapt(export.weights, export.spec, description.spec, f"{directory} is an export")
    return LoadedPolicy(export.run, description, weights)


def _describe_export(spec: Spec, stop: StopRequest | None, *, to_play: bool) -> RunDescription:
    """The export's spec with the environment installed here. Other settings have their defaults."""
    config = RunConfig()
    if to_play:
        spaces = inspect_in_child(
            spec.environment,
            use_mask=spec.observation.masked,
            limit_s=config.env_timeout_s,
            retry_s=config.env_retry_s,
            stop=stop,
        )
        spec = spec.seen_with(spaces)
    return RunDescription(spec, join_settings(config, spec.rollout_steps))


def _from_checkpoint(
    directory: Path, checkpoint: str, run: str, config: RunConfig, description: RunDescription
) -> Weights:
    from learner.build import build_ppo  # torch is needed for checkpoints only
    from learner.checkpoint import Checkpoints

    file = None if checkpoint == "last" else Path(checkpoint)
    if file is not None and not file.is_file():
        raise ConfigurationError(
            f"--checkpoint {checkpoint}: pass best, last, a checkpoint file or an export"
        )
    ppo = build_ppo(config.model_copy(update={"device": "cpu"}), description, update_epochs=1)
    checkpoints = Checkpoints(RunFiles(directory).checkpoints, run, description.digest, keep=1)
    snapshot = checkpoints.peek(ppo, file)
    if snapshot is None:
        raise ConfigurationError(f"{checkpoints.directory} holds no checkpoint")
    progress = snapshot.progress
    return Weights(
        epoch=snapshot.epoch,
        version=snapshot.version,
        update=progress.update,
        trained_steps=progress.trained_steps,
        settled_steps=snapshot.ledger_audit.ledger.settled_steps,
        spec=description.digest,
        arrays=ppo.acting_arrays(),
    )
