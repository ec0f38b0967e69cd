"""Describes action spaces as plain frozen values, and converts the network's actions for the environment.

Every space has categories, real dimensions, or both, in a fixed order. On the wire an action is the network's
choice: category indices counted from 0, and raw (unclipped) real numbers. `to_environment` converts it into
the environment's form. `gymnasium_spaces.py` makes the descriptions.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dppo_redis.spaces.observations import Array, all_finite


@dataclass(frozen=True)
class DiscreteSpec:
    """`n` categories; the environment numbers them from `start`."""

    n: int
    start: int

    @property
    def categories(self) -> tuple[int, ...]:
        """How many choices each categorical part has."""
        return (self.n,)

    @property
    def dimensions(self) -> int:
        """Real numbers in an action."""
        return 0

    def build(self, categories: Array, _values: Array) -> Any:
        """Actions [N] in the environment's form, from categories [N, 1]."""
        return categories[:, 0] + self.start


@dataclass(frozen=True)
class MultiDiscreteSpec:
    """Several categories at once, of any shape, flattened."""

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def categories(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def dimensions(self) -> int:
        return 0

    def build(self, categories: Array, _values: Array) -> Any:
        """Actions [N, *shape] in the environment's form, from categories [N, K] counted from 0."""
        numbers = (categories + np.asarray(self.starts)).astype(self.dtype, copy=False)
        return numbers.reshape(len(categories), *self.shape)


@dataclass(frozen=True)
class BoxSpec:
    """A continuous action of any shape, flattened; bounds may be infinite."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str

    @property
    def categories(self) -> tuple[int, ...]:
        return ()

    @property
    def dimensions(self) -> int:
        return len(self.low)

    def build(self, _categories: Array, values: Array) -> Any:
        """Clipped actions [N, *shape]; the learner trains on the raw ones."""
        clipped = np.clip(values, np.asarray(self.low, self.dtype), np.asarray(self.high, self.dtype))
        return clipped.astype(self.dtype, copy=False).reshape(len(values), *self.shape)


@dataclass(frozen=True)
class CompositeSpec:
    """A Dict (with `names`, in their order) or a Tuple (without) of action spaces."""

    names: tuple[str | int, ...] | None
    parts: tuple["Part", ...]

    @property
    def categories(self) -> tuple[int, ...]:
        return tuple(n for part in self.parts for n in part.categories)

    @property
    def dimensions(self) -> int:
        return sum(part.dimensions for part in self.parts)

    def build(self, categories: Array, values: Array) -> Any:
        """A dict or tuple of each part's actions, from categories [N, K] and numbers [N, A]."""
        built, k, a = [], 0, 0
        for part in self.parts:
            k_next, a_next = k + len(part.categories), a + part.dimensions
            built.append(part.build(categories[:, k:k_next], values[:, a:a_next]))
            k, a = k_next, a_next
        return tuple(built) if self.names is None else dict(zip(self.names, built, strict=True))


Part = DiscreteSpec | MultiDiscreteSpec | BoxSpec | CompositeSpec


@dataclass(frozen=True)
class ActionSpec:
    """The form of a row of actions on the wire, and its conversion for the environment.

    A row is an index (one Discrete), indices [K], raw numbers [A], or both in a structured dtype.
    """

    space: Part

    @cached_property
    def categories(self) -> tuple[int, ...]:
        """How many choices each categorical part has, [K]."""
        return self.space.categories

    @cached_property
    def dimensions(self) -> int:
        """Real numbers in an action, A."""
        return self.space.dimensions

    @cached_property
    def choices(self) -> int:
        """Number of logits: one for each choice of each category. They precede the means."""
        return sum(self.categories)

    @cached_property
    def outputs(self) -> int:
        """Width of the policy head: the logits, then one mean for each real number."""
        return self.choices + self.dimensions

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one action on the wire."""
        if isinstance(self.space, DiscreteSpec) or (self.categories and self.dimensions):
            return ()
        return (self.dimensions or len(self.categories),)

    @cached_property
    def wire_dtype(self) -> np.dtype[Any]:
        if self.categories and self.dimensions:
            parts = [
                ("categories", np.int64, (len(self.categories),)),
                ("values", np.float32, (self.dimensions,)),
            ]
            return np.dtype(parts)
        return np.dtype(np.int64 if self.categories else np.float32)

    def join(self, categories: Array, values: Array) -> Array:
        """Indices [..., K] and raw numbers [..., A] to rows [..., *row_shape]."""
        if not self.dimensions:
            return categories.reshape(*categories.shape[:-1], *self.row_shape)
        if not self.categories:
            return values
        rows = np.empty(categories.shape[:-1], self.wire_dtype)
        rows["categories"], rows["values"] = categories, values
        return rows

    def split(self, actions: Array) -> tuple[Array, Array]:
        """Rows [..., *row_shape] to indices [..., K] and raw numbers [..., A]; views."""
        lead = actions.shape[: actions.ndim - len(self.row_shape)]
        if not self.dimensions:
            return actions.reshape(*lead, -1), np.empty((*lead, 0), np.float32)
        if not self.categories:
            return np.empty((*lead, 0), np.int64), actions
        return actions["categories"], actions["values"]

    def to_environment(self, actions: Array) -> Any:
        """Convert rows [N, ...] into actions for N environments."""
        if isinstance(self.space, DiscreteSpec):  # the hot path of most tasks
            return actions + self.space.start if self.space.start else actions
        return self.space.build(*self.split(actions))

    def contains(self, actions: Array) -> bool:
        """Whether `actions` [..., *row_shape] have valid indices and finite numbers.

        Numbers may exceed the bounds of the space, because `to_environment` clips them.
        """
        categories, values = self.split(actions)
        if self.dimensions and not all_finite(values):
            return False
        # Read as an unsigned number, a negative index exceeds every size.
        unsigned = categories.view(np.uint64)
        return all(unsigned[..., k].max(initial=0) < size for k, size in enumerate(self.categories))

    def allows(self, actions: Array, mask: Array) -> Array:
        """[...], whether the mask [..., choices] allows every index."""
        categories, _ = self.split(actions)
        allowed = np.take_along_axis(mask, categories + self.offsets, axis=-1)
        return np.asarray(allowed.astype(np.bool_).all(axis=-1))

    @cached_property
    def offsets(self) -> Array:
        """[K], where the logits of each category begin."""
        return np.cumsum((0, *self.categories))[:-1]

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinite bounds become None, as JSON has no infinity."""
        return _to_json(self.space)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "ActionSpec":
        """Inverse of `to_json`."""
        return ActionSpec(_from_json(values))


def _to_json(part: Part) -> dict[str, Any]:
    if isinstance(part, CompositeSpec):
        names = None if part.names is None else list(part.names)
        return {"kind": "composite", "names": names, "parts": [_to_json(p) for p in part.parts]}
    kind = type(part).__name__.removesuffix("Spec").lower()
    values = {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(part).items()}
    if isinstance(part, BoxSpec):
        values["low"] = [x if np.isfinite(x) else None for x in part.low]
        values["high"] = [x if np.isfinite(x) else None for x in part.high]
    return {"kind": kind, **values}


def _from_json(values: dict[str, Any]) -> Part:
    values = dict(values)
    kind = values.pop("kind")
    if kind == "composite":
        names = None if values["names"] is None else tuple(values["names"])
        return CompositeSpec(names, tuple(_from_json(part) for part in values["parts"]))
    if kind == "discrete":
        return DiscreteSpec(**values)
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
    if kind == "multidiscrete":
        return MultiDiscreteSpec(**values)
    low = tuple(-np.inf if x is None else x for x in values.pop("low"))
    high = tuple(np.inf if x is None else x for x in values.pop("high"))
    return BoxSpec(low=low, high=high, **values)
