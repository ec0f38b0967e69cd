"""What a rollout is: facts that an actor saw, and the checks they must pass.

T steps of N environments sampled with one weights version; arrays are [T, N, ...]. No socket,
clock or file. What the flags mean for a return is decided in `learner/advantages.py` alone.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dppo_redis.errors import WireError
from dppo_redis.features import mask
from dppo_redis.spaces import Array, BoolArray, FloatArray, all_finite
from dppo_redis.spec import Spec

MAX_ENVIRONMENTS = 65_536


@dataclass(frozen=True)
class Rollout:
    """One actor's rollout. Arrays may be views of buffers that the collector uses again."""

    observations: Array  # [T, N, *row] single frames, what the policy saw before acting at t
    actions: Array  # [T, N, *row], see ActionSpec: indices counted from 0, real numbers raw
    log_probs: FloatArray  # [T, N], of the action under the weights that chose it
    rewards: FloatArray  # [T, N], raw, for the action at t
    terminated: BoolArray  # [T, N], the episode ended for good after the action at t
    truncated: BoolArray  # [T, N], it was cut off after the action at t
    valid: BoolArray  # [T, N], a real step; False for the dummy step of an automatic reset
    final_observations: Array  # [E, *row], true last observation of each ended row, in row order
    last_observations: Array  # [N, *row], the observation after the last step
    frames_before: Array  # [N, k - 1, *row], the frames before the first row, oldest first
    memory: FloatArray  # [N, S], state of the recurrent layer before the first row
    discounted_returns: npt.NDArray[np.float64]  # [N], running ones before the first step; 0 if not asked for
    episode_returns: FloatArray  # [E], undiscounted, of the episodes that ended here, in row order
    episode_lengths: npt.NDArray[np.int32]  # [E], steps

    @property
    def steps(self) -> int:
        """Valid rows."""
        return int(np.count_nonzero(self.valid))

    @property
    def ends(self) -> BoolArray:
        """[T, N], rows after which an episode ended, for either reason."""
        return self.terminated | self.truncated


ARRAY_NAMES = tuple(f.name for f in fields(Rollout))
OBSERVATION_NAMES = ("observations", "final_observations", "last_observations", "frames_before")
_FLOATS = ("log_probs", "rewards", "memory", "discounted_returns", "episode_returns")


@dataclass(frozen=True)
class RolloutHeader:
    """The plain text fields of a stream entry; enough to judge a rollout without unpacking it."""

    actor: int  # slot
    boot: str  # random 64-bit id of the actor process, 16 hex digits
    seq: int  # 1, 2, 3 ... within a boot
    epoch: int  # of the weights the rollout was sampled with
    version: int
    update: int
    steps: int  # valid rows
    crc: int  # crc32 of the payload
    spec: str  # digest


def validate(rollout: Rollout, spec: Spec) -> None:
    """Check a decoded rollout against the run's spec, before anything may use it.

    Raises:
        WireError: reason `dtype`, `shape`, `nonfinite`, `observation`, `action` or `flags`.
    """
    check_layout(rollout, spec)
    check_values(rollout, spec)


def check_layout(rollout: Rollout, spec: Spec) -> None:
    """The half of `validate` that looks at dtypes and shapes, and at flags for the rows that ended."""
    if rollout.rewards.ndim != 2:
        raise WireError("shape", f"rewards have shape {rollout.rewards.shape}, not [T, N]")
    t, n = rollout.rewards.shape
    if t != spec.rollout_steps or not 1 <= n <= MAX_ENVIRONMENTS:
        raise WireError("shape", f"T={t}, N={n}; the spec has T={spec.rollout_steps}")
    _check_arrays(rollout, spec, t, n)


def check_values(rollout: Rollout, spec: Spec) -> None:
    """The half of `validate` that looks at every number of a rollout whose dtypes and shapes are right."""
    for name in OBSERVATION_NAMES:  # before what the policy made of them
        _check_observations(name, getattr(rollout, name), spec)
    for name in _FLOATS:
        if not all_finite(getattr(rollout, name)):
            raise WireError("nonfinite", name)
    _check_actions(rollout, spec)
    if (rollout.ends & ~rollout.valid).any():
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
        raise WireError("action", "one that its action mask forbids")


def _check_arrays(rollout: Rollout, spec: Spec, t: int, n: int) -> None:
    rows = (t, n)
    for name in ("terminated", "truncated"):  # the number of ended rows is counted from these
        _check_array(name, getattr(rollout, name), rows, np.bool_)
    ended = (int(np.count_nonzero(rollout.ends)),)
    row, row_dtype = spec.observation.row_shape, spec.observation.row_dtype
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "observations": (rows + row, row_dtype),
        "actions": (rows + spec.action.row_shape, spec.action.wire_dtype),
        "log_probs": (rows, np.float32),
        "rewards": (rows, np.float32),
        "terminated": (rows, np.bool_),
        "truncated": (rows, np.bool_),
        "valid": (rows, np.bool_),
        "final_observations": (ended + row, row_dtype),
        "last_observations": ((n, *row), row_dtype),
        "frames_before": ((n, spec.frame_stack - 1, *row), row_dtype),
        "memory": ((n, spec.network.state_size), np.float32),
        "discounted_returns": ((n,), np.float64),
        "episode_returns": (ended, np.float32),
        "episode_lengths": (ended, np.int32),
    }
    for name, (shape, dtype) in expected.items():
        _check_array(name, getattr(rollout, name), shape, dtype)


def _check_array(name: str, array: Array, shape: tuple[int, ...], dtype: Any) -> None:
    if array.dtype != dtype:
        raise WireError("dtype", f"{name} is {array.dtype}, not {np.dtype(dtype)}")
    if array.shape != shape:
        raise WireError("shape", f"{name} is {array.shape}, not {shape}")
