"""The best policy of a run's evaluations, as a file of its directory with a checksum behind it."""

from pathlib import Path

from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.files import write_aside
from dppo_redis.run_files import RunFiles
from dppo_redis.spec import Spec
from dppo_redis.weights import Weights
from dppo_redis.wire import decode_weights, encode_weights, sha256

_CHECKSUM_BYTES = 64  # hexadecimal SHA-256


def write_best(run_dir: Path, weights: Weights) -> None:
    """Keep a policy as the best one, its checksum behind it.

    Raises:
        OSError: the disk refuses; the one before is untouched.
    """
    content = encode_weights(weights)
    write_aside(RunFiles(run_dir).best_policy, content + sha256(content).encode())


def _without_checksum(content: bytes) -> bytes:
    """What was kept. With a wrong checksum behind it, it stays too long to be decoded."""
    kept, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    return kept if checksum == sha256(kept).encode() else content


def read_best(run_dir: Path, spec: Spec) -> Weights:
    """The best policy of the evaluations during training.

    Raises:
        ConfigurationError: there is none, or it is damaged, or of another spec.
    """
    file = RunFiles(run_dir).best_policy
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
