"""What every side may read of a run's directory: its configuration, thus its spec, and its best policy."""

import re
from pathlib import Path

from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.files import write_aside
from dppo_redis.spec import Spec
from dppo_redis.weights import Weights
from dppo_redis.wire import decode_weights, encode_weights, sha256

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
USED = "used.json"  # epochs and versions
BEST_POLICY = "best_policy.msgpack"
_CHECKSUM_BYTES = 64  # hexadecimal SHA-256
_NUMBERED = re.compile(r"(checkpoint|milestone)-(\d+)\.pt")


def write_best(run_dir: Path, weights: Weights) -> None:
    """Keep a policy as the best one, its checksum behind it.

    Raises:
        OSError: the disk refuses; the one before is untouched.
    """
    content = encode_weights(weights)
    write_aside(run_dir / BEST_POLICY, content + sha256(content).encode())


def _without_checksum(content: bytes) -> bytes:
    """What was kept. With a wrong checksum behind it, it stays too long to be decoded."""
    kept, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    return kept if checksum == sha256(kept).encode() else content


def read_best(run_dir: Path, spec: Spec) -> Weights:
    """The best policy of the evaluations during training.

    Raises:
        ConfigurationError: there is none, or it is damaged, or of another spec.
    """
    file = run_dir / BEST_POLICY
    try:
        weights = decode_weights(_without_checksum(file.read_bytes()))
    except OSError as error:
        raise ConfigurationError(
            f"{file}: {error.strerror}; pass --checkpoint last for the newest checkpoint"
        ) from error
    except WireError as error:
        raise ConfigurationError(f"{file} is not a policy: {error}") from error
    if weights.spec != spec.digest():
        raise ConfigurationError(
            f"{file} is of spec {weights.spec}; the run's configuration and environment give {spec.digest()}"
        )
    return weights


def checkpoint_name(update: int) -> str:
    """Of the checkpoint after `update`."""
    return f"checkpoint-{update:09d}.pt"


def milestone_name(trained_steps: int) -> str:
    """Of the checkpoint that is kept for ever."""
    return f"milestone-{trained_steps:012d}.pt"


def number_of(file: Path) -> int:
    """The update in a checkpoint's name, the trained steps in a milestone's."""
    found = _NUMBERED.fullmatch(file.name)
    if found is None:
        raise ValueError(f"{file.name} is no checkpoint's name")
    return int(found[2])


def checkpoint_files(directory: Path, kind: str = "checkpoint") -> list[Path]:
    """The checkpoints, or milestones, in a directory, newest first; copies under other names are neither."""
    files = [file for file in directory.glob(f"{kind}-*.pt") if _NUMBERED.fullmatch(file.name)]
    return sorted(files, key=number_of, reverse=True)


def resumable_files(directory: Path) -> list[Path]:
    """All that a run may go on from: its checkpoints, newest first, then its milestones."""
    return checkpoint_files(directory) + checkpoint_files(directory, "milestone")
