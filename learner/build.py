"""Builds network, optimiser and checkpoints from a run's configuration, for learner and serial baseline."""

import math
from pathlib import Path

import torch
from torch import nn

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.protocol.config import MAX_PAYLOAD_BYTES, RunConfig
from dppo_redis.protocol.spec import RunDescription
from learner.checkpoint import Checkpoints
from learner.ppo.update import PpoUpdate


def build_ppo(config: RunConfig, description: RunDescription, update_epochs: int) -> PpoUpdate:
    """Build network and optimiser from the run's seed; the serial baseline builds the same."""
    torch.manual_seed(config.seed)
    network = ActorCritic(description.spec)
    if description.spec.action.dimensions:
        nn.init.constant_(network.log_std, math.log(config.ppo.initial_std))
    return PpoUpdate(
        network,
        description.spec,
        config.ppo,
        update_epochs,
        config.seed,
        pick_device(config.device),
    )


def make_checkpoints(config: RunConfig, description: RunDescription, run: str, run_dir: Path) -> Checkpoints:
    """The checkpoints in a run's directory."""
    plan = description.join.lock_step
    segment = plan.segment_updates if plan else 1
    return Checkpoints(
        RunFiles(run_dir).checkpoints, run, description.digest, config.checkpoint.keep, segment
    )


def check_network(config: RunConfig, description: RunDescription) -> None:
    """Refuse a network or a device that the learner could not use. Writes nothing.

    Raises:
        ConfigurationError: the learner cannot use it; the message names the setting and the reason.
    """
    check_size(build_ppo(config, description, update_epochs=1))


def check_size(ppo: PpoUpdate) -> None:
    """Refuse a network whose weights are too large for a publication.

    Raises:
        ConfigurationError: they are too large; the message names the size and the limit.
    """
    size = sum(array.nbytes for array in ppo.acting_arrays().values())
    if size > MAX_PAYLOAD_BYTES:
        raise ConfigurationError(
            f"the policy has {size / 2**20:.0f} MiB of weights, and a publication may have "
            f"{MAX_PAYLOAD_BYTES // 2**20}: make network.hidden smaller"
        )


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` takes the GPU if there is one.

    Raises:
        ConfigurationError: this machine does not have the GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"device: this machine has no {name}; use auto or cpu")
    return device
