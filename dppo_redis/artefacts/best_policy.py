"""Keeps the best policy of a run's evaluations in the run's directory, with a checksum after its bytes."""

import json
import logging
from pathlib import Path

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.protocol.report_fields import from_json, to_json
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import Weights
from dppo_redis.protocol.wire import decode_weights, encode_weights, sha256
from dppo_redis.service.files import write_atomically

_CHECKSUM_BYTES = 64  # hexadecimal SHA-256
_log = logging.getLogger("dppo")


def write_best(run_dir: Path, weights: Weights) -> None:
    """Write a policy as the run's best one, with its checksum at the end of the file.

    Raises:
        OSError: the disk refuses; the file written before stays as it was.
    """
    content = encode_weights(weights)
    write_atomically(RunFiles(run_dir).best_policy, content + sha256(content).encode())


def _without_checksum(content: bytes) -> bytes:
    """Cut off the checksum. Bytes with a wrong checksum are returned whole, and then fail to decode."""
    kept, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    return kept if checksum == sha256(kept).encode() else content


def read_best(run_dir: Path, spec: Spec) -> Weights:
    """The best policy of the evaluations during training.

    Raises:
        ConfigurationError: the file is missing or damaged, or its policy has another spec.
    """
    file = RunFiles(run_dir).best_policy
    try:
        weights = decode_weights(_without_checksum(file.read_bytes()))
    except OSError as error:
        raise ConfigurationError(
            f"{file}: {error.strerror}; take the newest checkpoint instead "
            "(of evaluate, enjoy and export: --checkpoint last)"
        ) from error
    except WireError as error:
        raise ConfigurationError(f"{file} is not a policy: {error}") from error
    if weights.spec != spec.digest():
        raise ConfigurationError(
            f"{file} is of spec {weights.spec}; the run's configuration and environment give {spec.digest()}"
        )
    return weights


class BestPolicy:
    """Keeps the policy with the highest mean return; if returns are equal, the first one."""

    def __init__(self, run_dir: Path | None) -> None:
        """Start from the best policy in the directory; None: compare policies without keeping them."""
        self._run_dir = run_dir
        self.failure = ""  # why the best policy could not be kept; empty if it was
        self.return_mean = self._read()

    def consider(self, weights: Weights, evaluation: Evaluation) -> bool:
        """Keep a policy if it is the best so far; returns whether it is. A full disk is logged.

        The policy of a cut evaluation is never the best: too many of its episodes are short.
        """
        if not evaluation.complete:
            return False
        is_best = self.return_mean is None or evaluation.return_mean > self.return_mean
        if is_best:
            self.return_mean = evaluation.return_mean
            self._keep(weights, evaluation)
        return is_best

    def _keep(self, weights: Weights, evaluation: Evaluation) -> None:
        if self._run_dir is None:
            return
        try:
            keep_best(self._run_dir, weights, evaluation)
            self.failure = ""
        except OSError as error:
            self.failure = f"cannot keep the best policy: {error}"
            _log.error("%s", self.failure)

    def _read(self) -> float | None:
        if self._run_dir is None or not RunFiles(self._run_dir).best_evaluation.exists():
            return None
        try:
            return from_json(Evaluation, RunFiles(self._run_dir).best_evaluation.read_text()).return_mean
        except (ValueError, OSError) as error:
            _log.warning("the record of the best evaluation is unreadable: starting a new one: %s", error)
            return None


def keep_best(run_dir: Path, weights: Weights, evaluation: Evaluation) -> None:
    """Keep a policy and its evaluation; each file is replaced atomically."""
    write_best(run_dir, weights)
    write_atomically(RunFiles(run_dir).best_evaluation, json.dumps(to_json(evaluation), indent=2).encode())
