"""Starts a new run's network from another run's directory, a checkpoint file, or an export.

It takes over the policy, the value network if the source has one, and the observation statistics.
The optimiser and all counters start from zero.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dppo_redis.artefacts.best_policy import read_best
from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.exports import is_export, read_export
from dppo_redis.artefacts.run_files import RunFiles, resumable_files
from dppo_redis.artefacts.spaces_file import describe_stored
from dppo_redis.environments.child import spaces_of
from dppo_redis.errors import CheckpointError, ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import RunPlan
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN, Weights
from dppo_redis.service.plugins import one_line
from dppo_redis.spaces.normaliser import RunningMoments
from learner.checkpoint import Checkpoints, newest_readable, read_values
from learner.ppo.update import PpoUpdate
from learner.progress import Progress

_VALUE = "value."
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class WarmStartSource:
    """The parts of a source that a new network starts from."""

    path: Path  # the file or the export
    spec: Spec
    network: dict[str, Tensor]  # by name, each in any shape; with or without the value network
    observation_moments: RunningMoments | None
    return_moments: RunningMoments | None
    trained_steps: int


def read_source(path: Path) -> WarmStartSource:
    """Read a warm start's source: a run's directory, a checkpoint file, a best policy or an export.

    Raises:
        ConfigurationError: there is no such source, or it is damaged.
    """
    try:
        if is_export(path):
            export = read_export(path)
            return _from_weights(path, export.weights, export.spec)
        if RunFiles(path).config.is_file():
            return _from_run(path)
        if path == RunFiles(path.parent).best_policy:
            return _from_best(path.parent)
        if path.is_file():
            return _from_parts(path, read_values(path))
    except CheckpointError as error:
        raise ConfigurationError(f"init_from: {path}: {error}") from error
    raise ConfigurationError(f"init_from: {path} is no run's directory, no checkpoint and no export")


def check_source(source: WarmStartSource, spec: Spec) -> None:
    """Refuse a source whose spec differs in a policy's inputs, network or actions.

    Raises:
        ConfigurationError: they differ; the message names the differences.
    """
    differences = spec.acting_differences(source.spec)
    if differences:
        raise ConfigurationError(
            f"init_from: {source.path} is for another spec ({'; '.join(differences)}): "
            "network, spaces, frame stack and normalisation have to be alike"
        )


def check_before_start(plan: RunPlan, run_dir: Path) -> None:
    """Refuse a warm start that cannot work, if the run's configuration asks for one. Writes nothing.

    Raises:
        ConfigurationError: the source is missing, damaged or of another spec, or this run would remove it.
    """
    if plan.config.init_from is None:
        return
    path = Path(plan.config.init_from)
    if path.resolve().is_relative_to(run_dir.resolve()):
        raise ConfigurationError(
            f"init_from: {path} lies in the directory of the run to begin: choose another --run-dir"
        )
    check_source(read_source(path), plan.description.spec)


def resume_or_begin(config: RunConfig, ppo: PpoUpdate, checkpoints: Checkpoints | None) -> Progress:
    """Load the newest checkpoint, else the warm start, into `ppo`; for a training without a fleet.

    Raises:
        ConfigurationError, CheckpointError: the checkpoint or the source does not fit, or cannot be read.
    """
    snapshot = None if checkpoints is None else checkpoints.restore(ppo)
    if snapshot is not None:
        _log.info("resuming at update %d", snapshot.progress.update)
        return snapshot.progress
    if config.init_from is not None:
        warm_start(ppo, Path(config.init_from))
    return Progress()


def warm_start(ppo: PpoUpdate, path: Path) -> None:
    """Load the policy at `path` into a new `ppo`.

    Raises:
        ConfigurationError: the source is of another spec, or damaged.
    """
    source = read_source(path)
    check_source(source, ppo.spec)
    network = dict(source.network)
    # A value network predicts returns in its run's scale, so it is useless in a run with another scale.
    same_scale = (source.spec.return_discount is None) == (ppo.spec.return_discount is None)
    if not same_scale:
        network = {name: x for name, x in network.items() if not name.startswith(_VALUE)}
    elif source.return_moments is not None:
        ppo.return_moments = source.return_moments
    own = {name: x for name, x in ppo.model.state_dict().items() if name.startswith(_VALUE)}
    try:
        ppo.model.load_state_dict({**own, **network})
    except RuntimeError as error:
        raise ConfigurationError(
            f"init_from: {source.path} does not fit the network: {one_line(error)}"
        ) from error
    if source.observation_moments is not None:
        ppo.observation_moments = source.observation_moments
    critic = "policy and value network" if own.keys() <= network.keys() else "policy"
    _log.info("starting from the %s of %s after %d steps", critic, source.path, source.trained_steps)


def _from_run(run_dir: Path) -> WarmStartSource:
    """The newest readable checkpoint of a run, else its best policy."""
    found = newest_readable(resumable_files(RunFiles(run_dir).checkpoints))
    return _from_best(run_dir) if found is None else _from_parts(*found)


def _from_parts(file: Path, values: dict[str, Any]) -> WarmStartSource:
    return WarmStartSource(
        path=file,
        spec=Spec.from_json(values["spec_values"]),
        network=values["model"],
        observation_moments=RunningMoments.from_dict(values["observation_moments"]),
        return_moments=RunningMoments.from_dict(values["return_moments"]),
        trained_steps=Progress.from_dict(values["progress"]).trained_steps,
    )


def _from_best(run_dir: Path) -> WarmStartSource:
    spec = describe_stored(run_dir, load_toml(RunFiles(run_dir).config), spaces_of).spec
    return _from_weights(RunFiles(run_dir).best_policy, read_best(run_dir, spec), spec)


def _from_weights(path: Path, weights: Weights, spec: Spec) -> WarmStartSource:
    arrays = weights.network_arrays()
    return WarmStartSource(
        path=path,
        spec=spec,
        network={name: torch.from_numpy(array.copy()) for name, array in arrays.items()},
        observation_moments=_moments(weights),
        return_moments=None,
        trained_steps=weights.trained_steps,
    )


def _moments(weights: Weights) -> RunningMoments | None:
    """The observation statistics of a publication's normaliser; their count is that of the trained steps."""
    if NORMALISER_MEAN not in weights.arrays:
        return None
    mean, inverse_std = weights.arrays[NORMALISER_MEAN], weights.arrays[NORMALISER_INVERSE_STD]
    return RunningMoments.from_scale(max(1, weights.trained_steps), mean, inverse_std)
