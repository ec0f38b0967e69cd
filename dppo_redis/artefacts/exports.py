"""Writes and reads exports of a policy: its arrays as safetensors, and their description as JSON.

The arrays are those that acting needs, with the observation normaliser. The description is written last: a
directory without it is no export. It says how to act as data (`layout`, since format 2) and as text
(`how_to_act`).
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dppo_redis.artefacts.instructions import how_to_act
from dppo_redis.artefacts.layout import check_layout, layout_of, with_shapes_of
from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import Weights
from dppo_redis.protocol.wire import sha256
from dppo_redis.service.files import write_atomically
from dppo_redis.spaces.observations import FloatArray, all_finite

FORMAT = 2
READABLE = (1, 2)  # format 1 has no layout
DESCRIPTION = "policy.json"
ARRAYS = "policy.safetensors"
GRAPH = "policy.onnx"  # only where one was asked for
_COUNTS = {  # as they are written, and the fields of `Weights` that they are
    **{name: name for name in ("epoch", "version", "update", "trained_steps")},
    "env_steps": "settled_steps",
}
# Raised while values are read that are not those of an export.
_DAMAGES = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SafetensorError,
)


@dataclass(frozen=True)
class Export:
    """The content of an export."""

    run: str  # the one it was trained in
    spec: Spec
    weights: Weights


def is_export(path: Path) -> bool:
    """Whether `path` is the directory of an export."""
    return (path / DESCRIPTION).is_file()


def is_replaceable(path: Path) -> bool:
    """Whether `path` holds an export of any format, whole or not. One file of the same name is not enough."""
    try:
        _read_description(path / DESCRIPTION)
    except (OSError, ValueError, RecursionError, ConfigurationError):
        return False
    return True


def write_export(directory: Path, export: Export, *, extra: dict[str, Any] | None = None) -> None:
    """Write an export into a directory, which is created; the description includes `extra`.

    The caller has written the ONNX graph already, if there is one, and has removed an earlier export's graph.

    Raises:
        ConfigurationError: the directory cannot be written.
    """
    weights = export.weights
    content = save({name: np.ascontiguousarray(array) for name, array in weights.arrays.items()})
    description = {
        "format": FORMAT,
        "run": export.run,
        "digest": export.spec.digest(),
        **{name: getattr(weights, field) for name, field in _COUNTS.items()},
        "arrays": {"file": ARRAYS, "sha256": sha256(content)},
        "layout": layout_of(export.spec),
        "how_to_act": how_to_act(export.spec),
        "spec": export.spec.to_json(),
        **(extra or {}),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / ARRAYS, content)
        write_atomically(directory / DESCRIPTION, (json.dumps(description, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigurationError(f"cannot write the export {directory}: {error.strerror}") from error


def read_export(directory: Path) -> Export:
    """Read an export and check that it is whole.

    Raises:
        ConfigurationError: there is no export, or it is damaged or of another format.
    """
    file = directory / DESCRIPTION
    try:
        values = _read_description(file)
        found = _format(file, values)
        content = (directory / ARRAYS).read_bytes()
        if sha256(content) != values["arrays"]["sha256"]:
            raise ConfigurationError(f"{directory / ARRAYS} is not the file that {DESCRIPTION} describes")
        spec = Spec.from_json(values["spec"])
        if spec.digest() != values["digest"]:
            raise ConfigurationError(f"{file} has the digest {values['digest']}, its spec {spec.digest()}")
        counts = {field: int(values[name]) for name, field in _COUNTS.items()}
        weights = Weights(**counts, spec=spec.digest(), arrays=_floats(load(content)))
        if found > 1:
            spec = with_shapes_of(spec, values["layout"])
            check_layout(values["layout"], spec, weights.arrays)
        return Export(str(values["run"]), spec, weights)
    except OSError as error:
        raise ConfigurationError(
            f"{directory} is not an export: {error.filename}: {error.strerror}"
        ) from error
    except _DAMAGES as error:
        raise ConfigurationError(f"{directory} is a damaged export: {error!r}") from error


def load_export(directory: Path | str, spec: Spec | None = None) -> ActingPolicy:
    """The policy in an export, ready to act; `playing.Player` is the easiest way to use it.

    With `spec` the policy becomes one of the run with that spec: observations, actions and network must be
    the same.

    Raises:
        ConfigurationError: there is no whole export, or its spec differs from `spec`.
    """
    path = Path(directory)
    export = read_export(path)
    try:
        if spec is None:
            return ActingPolicy(export.weights, export.spec)
        return ActingPolicy(adapt(export.weights, export.spec, spec, f"{path} is an export"), spec)
    except WireError as error:
        raise ConfigurationError(f"{path} is a damaged export: {error}") from error


def adapt(weights: Weights, own: Spec, wanted: Spec, subject: str) -> Weights:
    """Weights of the spec `own` as weights of the spec `wanted`, whose policies must act alike.

    Raises:
        ConfigurationError: the specs differ; the message names the differences.
    """
    differences = wanted.acting_differences(own)
    if differences:
        raise ConfigurationError(f"{subject} for another spec: {'; '.join(differences)}")
    return replace(weights, spec=wanted.digest())


def _read_description(file: Path) -> dict[str, Any]:
    """The description of an export of any format.

    Raises:
        ConfigurationError: the file describes something else.
        OSError, ValueError, RecursionError: the file cannot be read, or is no JSON.
    """
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or not {"format", "arrays", "spec"} <= values.keys():
        raise ConfigurationError(f"{file} is not the description of an export of dppo-redis")
    return values


def _format(file: Path, values: dict[str, Any]) -> int:
    """The format of a description.

    Raises:
        ConfigurationError: this release does not read that format.
    """
    found = values["format"]
    if type(found) is not int or found not in READABLE:
        raise ConfigurationError(
            f"{file.parent} is an export of format {found}, this release reads "
            f"{' and '.join(map(str, READABLE))}"
        )
    return found


def _floats(arrays: dict[str, Any]) -> dict[str, FloatArray]:
    for name, array in arrays.items():
        if array.dtype != np.float32 or not all_finite(array):
            raise ValueError(f"{name} holds something else than finite float32 numbers")
    return arrays
