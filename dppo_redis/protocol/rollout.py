"""The rollout: its arrays, its header, and the checks that it must pass. No socket, clock or file.

A rollout has T steps of N environments, sampled with one version of weights. E of its rows end an episode.
The annotations of `Rollout` are the only table of its arrays, in wire order: buffers, wire, checks and batch
follow from them. `learner/ppo/advantages.py` alone decides what the flags mean for a return.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import numpy.typing as npt

from dppo_redis.errors import WireError
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.features import mask
from dppo_redis.spaces.metric_names import MAX_NAMES, is_name
from dppo_redis.spaces.observations import Array, BoolArray, FloatArray, all_finite

MAX_ENVIRONMENTS = 65_536
_ROUNDING_ERROR = 1e-6  # of a log-probability in float32, for each category


class Layout(NamedTuple):
    """One array of a rollout: its leading axes, and the shape and dtype of each item."""

    axes: Literal["TN", "N", "E"]  # steps, environments, ended rows in row order
    row: Literal["observation", "frames", "action", "memory", "float32", "float64", "int32", "bool"]


@dataclass(frozen=True)
class Rollout:
    """One actor's rollout. Its arrays may be views of buffers that the collector reuses."""

    # [T, N, *row], single frames that the policy saw before acting at t.
    observations: Annotated[Array, Layout("TN", "observation")]
    # [T, N, *row], see ActionSpec: indices counted from 0, real numbers not clipped.
    actions: Annotated[Array, Layout("TN", "action")]
    # [T, N], of the action under the weights that chose it.
    log_probs: Annotated[FloatArray, Layout("TN", "float32")]
    # [T, N], for the action at t, not scaled.
    rewards: Annotated[FloatArray, Layout("TN", "float32")]
    # [T, N], the episode ended in a terminal state after the action at t.
    terminated: Annotated[BoolArray, Layout("TN", "bool")]
    # [T, N], the episode was cut off after the action at t.
    truncated: Annotated[BoolArray, Layout("TN", "bool")]
    # [T, N], a real step; False for the dummy step of an automatic reset.
    valid: Annotated[BoolArray, Layout("TN", "bool")]
    # [E, *row], the true last observation of each ended row.
    final_observations: Annotated[Array, Layout("E", "observation")]
    # [N, *row], the observation after the last step.
    last_observations: Annotated[Array, Layout("N", "observation")]
    # [N, k - 1, *row], the frames before the first row, oldest first.
    frames_before: Annotated[Array, Layout("N", "frames")]
    # [N, S], the state of the recurrent layer before the first row.
    memory: Annotated[FloatArray, Layout("N", "memory")]
    # [N], running discounted returns before the first step; 0 where returns are not normalised.
    discounted_returns: Annotated[npt.NDArray[np.float64], Layout("N", "float64")]
    # [E], undiscounted returns of the episodes that ended in these rows.
    episode_returns: Annotated[FloatArray, Layout("E", "float32")]
    # [E], lengths of these episodes in steps.
    episode_lengths: Annotated[npt.NDArray[np.int32], Layout("E", "int32")]
    # The environment's metrics of these episodes, as MetricArrays. The type is Any, because callers pass the
    # arrays by name. It is not in the table of arrays, because it is sent only if there are metrics.
    metrics: Any = field(default_factory=dict, kw_only=True)

    @property
    def steps(self) -> int:
        """Valid rows."""
        return int(np.count_nonzero(self.valid))

    @property
    def ends(self) -> BoolArray:
        """[T, N], rows after which an episode ended, for either reason."""
        return self.terminated | self.truncated


Form = tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype
LAYOUTS: dict[str, Layout] = {
    f.name: get_args(f.type)[1] for f in fields(Rollout) if get_origin(f.type) is Annotated
}
ARRAY_NAMES = tuple(LAYOUTS)
OBSERVATION_NAMES = tuple(n for n, layout in LAYOUTS.items() if layout.row in ("observation", "frames"))
_FLOATS = tuple(n for n, layout in LAYOUTS.items() if layout.row in ("float32", "float64", "memory"))
_FLOAT32, _FLOAT64, _INT32, _BOOL = map(np.dtype, ("float32", "float64", "int32", "bool"))


def may_be_short(spec: Spec) -> bool:
    """Whether rollouts may have fewer steps than T; a network with a memory needs whole rollouts."""
    return spec.network.memory == "none"


def array_forms(spec: Spec, n: int, ended: int, steps: int | None = None) -> dict[str, Form]:
    """Shape and dtype of each array of a rollout of N environments with E ended rows, by name.

    Without `steps` it has T steps.
    """
    row, dtype = spec.observation.row_shape, spec.observation.row_dtype
    rows: dict[str, Form] = {
        "observation": (row, dtype),
        "frames": ((spec.frame_stack - 1, *row), dtype),
        "action": (spec.action.row_shape, spec.action.wire_dtype),
        "memory": ((spec.network.state_size,), _FLOAT32),
        "float32": ((), _FLOAT32),
        "float64": ((), _FLOAT64),
        "int32": ((), _INT32),
        "bool": ((), _BOOL),
    }
    axes = {"TN": (steps or spec.rollout_steps, n), "N": (n,), "E": (ended,)}
    found = {}
    for name, (along, of) in LAYOUTS.items():
        shape, dtype = rows[of]
        found[name] = axes[along] + shape, dtype
    return found


def allocate(spec: Spec, n: int) -> Rollout:
    """An empty rollout of N environments, whose arrays the collector fills; no row ends an episode yet."""
    forms = array_forms(spec, n, ended=0)
    return Rollout(**{name: np.empty(shape, dtype) for name, (shape, dtype) in forms.items()})


@dataclass(frozen=True)
class RolloutHeader:
    """The plain text fields of a stream entry, by which a rollout is judged without unpacking it."""

    actor: int  # slot
    boot: str  # random 64-bit id of the actor process, 16 hex digits
    seq: int  # 1, 2, 3 ... within a boot
    epoch: int  # of the weights that sampled the rollout
    version: int
    update: int
    steps: int  # valid rows
    crc: int  # crc32 of the payload
    spec: str  # digest


def validate(rollout: Rollout, spec: Spec) -> None:
    """Check a decoded rollout against the run's spec, before any other use.

    Raises:
        WireError: reason `dtype`, `shape`, `nonfinite`, `observation`, `action`, `log_prob` or
            `flags`.
    """
    check_layout(rollout, spec)
    check_values(rollout, spec)


def check_layout(rollout: Rollout, spec: Spec) -> None:
    """Check dtypes and shapes: the first half of `validate`.

    Raises:
        WireError: reason `shape` or `dtype`; the message names the array.
    """
    if rollout.rewards.ndim != 2:
        raise WireError("shape", f"rewards have shape {rollout.rewards.shape}, not [T, N]")
    t, n = rollout.rewards.shape
    is_long_enough = t == spec.rollout_steps or (may_be_short(spec) and 1 <= t < spec.rollout_steps)
    if not is_long_enough or not 1 <= n <= MAX_ENVIRONMENTS:
        raise WireError("shape", f"T={t}, N={n}; the spec has T={spec.rollout_steps}")
    for name in ("terminated", "truncated"):  # they give the number of ended rows
        _check_array(name, getattr(rollout, name), (t, n), _BOOL)
    ended = int(np.count_nonzero(rollout.ends))
    for name, (shape, dtype) in array_forms(spec, n, ended, t).items():
        _check_array(name, getattr(rollout, name), shape, dtype)
    if len(rollout.metrics) > MAX_NAMES or not all(map(is_name, rollout.metrics)):
        raise WireError("shape", "metrics with names that no actor sends")
    for name, array in rollout.metrics.items():
        _check_array(name, array, (ended,), _FLOAT64)


def check_values(rollout: Rollout, spec: Spec) -> None:
    """Check every number: the second half of `validate`, after `check_layout`.

    Raises:
        WireError: a number is not finite, or outside its space; the message names the array.
    """
    for name in OBSERVATION_NAMES:  # first: the policy computes the others from these
        _check_observations(name, getattr(rollout, name), spec)
    for name in _FLOATS:
        numbers: Array = getattr(rollout, name)
        if numbers.size and not all_finite(numbers):
            raise WireError("nonfinite", name)
    if any(np.isinf(array).any() for array in rollout.metrics.values()):
        raise WireError("nonfinite", "metrics")
    _check_actions(rollout, spec)
    _check_log_probs(rollout, spec)
    if np.greater(rollout.ends, rollout.valid).any():
        raise WireError("flags", "an episode ends in a row that is not valid")


def _check_observations(name: str, rows: Array, spec: Spec) -> None:
    if not rows.size:
        return
    part = spec.observation.nonfinite(rows)
    if part is not None:
        raise WireError("nonfinite", name if spec.observation.is_plain else f"{name} {part}")
    part = spec.observation.outside(rows)
    if part is not None:
        raise WireError("observation", f"{name} {part} outside its space")


def _check_actions(rollout: Rollout, spec: Spec) -> None:
    if not spec.action.contains(rollout.actions):
        raise WireError("action", f"outside {spec.action}")
    allowed = mask(spec.observation, rollout.observations)
    if allowed is not None and not spec.action.allows(rollout.actions, allowed)[rollout.valid].all():
        raise WireError("action", "an action that its action mask forbids")


def _check_log_probs(rollout: Rollout, spec: Spec) -> None:
    """Refuse probabilities above 1; densities of real numbers may exceed 1."""
    if spec.action.dimensions:
        return
    highest = rollout.log_probs.max(initial=-np.inf)
    if highest > _ROUNDING_ERROR * len(spec.action.categories):
        raise WireError("log_prob", f"log-probability {highest:.6g} of one of finitely many choices")


def _check_array(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if array.dtype != dtype:
        raise WireError("dtype", f"{name} is {array.dtype}, not {dtype}")
    if array.shape != shape:
        raise WireError("shape", f"{name} is {array.shape}, not {shape}")
