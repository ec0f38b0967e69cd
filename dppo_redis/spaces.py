"""Which observation and action spaces are supported, as plain frozen values.

The only reader of gymnasium's space objects. What is not listed here is refused by name, before a
run starts. On the wire an action is what the network chose: the category index counted from 0, or
the raw (unclipped) vector; `to_environment` turns it into what the environment accepts.
"""

from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from dppo_redis.errors import ConfigurationError

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ObservationSpec:
    """A vector observation; the network reads it as float32 of shape (size,)."""

    size: int
    dtype: str  # of the environment; what travels is float32


@dataclass(frozen=True)
class DiscreteSpec:
    """`n` categories; the environment numbers them from `start`."""

    n: int
    start: int

    @property
    def outputs(self) -> int:
        """Width of the policy head."""
        return self.n

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one action on the wire."""
        return ()

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64)

    def to_environment(self, actions: Array) -> Array:
        """Category indices [N] to the environment's own numbers [N]."""
        return actions + self.start if self.start else actions

    def contains(self, actions: Array) -> bool:
        """Whether all indices are in range."""
        return bool(((actions >= 0) & (actions < self.n)).all())


@dataclass(frozen=True)
class BoxSpec:
    """A continuous action of any shape, flattened; bounds may be infinite."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str

    @property
    def outputs(self) -> int:
        """Width of the policy head: one mean per dimension."""
        return len(self.low)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one action on the wire."""
        return (len(self.low),)

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def to_environment(self, actions: Array) -> Array:
        """Raw actions [N, A] to clipped actions [N, *shape]; the raw ones are what is trained on."""
        clipped = np.clip(actions, np.asarray(self.low, self.dtype), np.asarray(self.high, self.dtype))
        return clipped.astype(self.dtype, copy=False).reshape(len(actions), *self.shape)

    def contains(self, actions: Array) -> bool:
        """Whether all raw actions are finite; they may exceed the bounds."""
        return bool(np.isfinite(actions).all())


ActionSpec = DiscreteSpec | BoxSpec


def describe_observations(space: gymnasium.Space[Any]) -> ObservationSpec:
    """Describe a vector observation space.

    Raises:
        ConfigurationError: any other space, by its name.
    """
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigurationError(
            f"observation space {space} is not supported: this release takes Box vectors"
        )
    if len(space.shape) != 1 or space.shape[0] == 0:
        raise ConfigurationError(
            f"observation space {space} is not supported: this release takes Box vectors "
            f"of one dimension, not shape {space.shape}"
        )
    return ObservationSpec(size=space.shape[0], dtype=str(space.dtype))


def describe_actions(space: gymnasium.Space[Any]) -> ActionSpec:
    """Describe a Discrete or Box action space.

    Raises:
        ConfigurationError: any other space, by its name.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return DiscreteSpec(n=int(space.n), start=int(space.start))
    if isinstance(space, gymnasium.spaces.Box) and space.dtype is not None:
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigurationError(f"action space {space} is not supported: a Box of {space.dtype}")
        if np.isnan(space.low).any() or np.isnan(space.high).any() or (space.low > space.high).any():
            raise ConfigurationError(f"action space {space} has bounds that no action can meet")
        low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
        if not low:
            raise ConfigurationError(f"action space {space} has no dimension")
        return BoxSpec(shape=space.shape, low=tuple(low), high=tuple(high), dtype=str(space.dtype))
    raise ConfigurationError(f"action space {space} is not supported: this release takes Discrete and Box")


def action_spec_to_json(spec: ActionSpec) -> dict[str, Any]:
    """Plain values of an action space; infinite bounds become None, as JSON has no infinity."""
    values: dict[str, Any] = {"kind": type(spec).__name__.removesuffix("Spec").lower(), **asdict(spec)}
    if isinstance(spec, BoxSpec):
        values["shape"] = list(spec.shape)
        values["low"] = [x if np.isfinite(x) else None for x in spec.low]
        values["high"] = [x if np.isfinite(x) else None for x in spec.high]
    return values


def action_spec_from_json(values: dict[str, Any]) -> ActionSpec:
    """Inverse of `action_spec_to_json`."""
    if values["kind"] == "discrete":
        return DiscreteSpec(n=values["n"], start=values["start"])
    return BoxSpec(
        shape=tuple(values["shape"]),
        low=tuple(-np.inf if x is None else x for x in values["low"]),
        high=tuple(np.inf if x is None else x for x in values["high"]),
        dtype=values["dtype"],
    )
