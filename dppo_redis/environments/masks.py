"""Converts an environment's `info["action_mask"]`, in any of its forms, into one row of flags."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces.actions import ActionSpec, CompositeSpec, Part
from dppo_redis.spaces.observations import Array

MASK = "action_mask"


def read_mask(mask: Any, action: ActionSpec) -> Array:
    """A mask as int8 flags [choices], 1 for a choice that is allowed.

    It has one flag for each choice: all in one array, an array for each category, or in the form in which
    gymnasium's `space.sample(mask)` takes it, a dict or tuple of the masks of the parts, nested like the
    space, with None where everything is allowed.

    Without a mask everything is allowed, and so is each category that has nothing allowed, as in a
    final state: something has to be drawn.

    Raises:
        ConfigurationError: it has another form than the choices of the action space.
    """
    if mask is not None and not action.choices:
        raise _misfit(mask, action.space)
    allowed = _flags(mask, action.space)
    for first, size in zip(action.offsets, action.categories, strict=True):
        if not allowed[first : first + size].any():
            allowed[first : first + size] = 1
    return allowed


def _flags(mask: Any, part: Part) -> Array:
    """The mask of one part of the action space; a new array [choices of it]."""
    choices = sum(part.categories)
    if mask is None:
        return np.ones(choices, np.int8)
    leaves = _leaves(mask)
    if leaves is not None:
        sizes = [leaf.size for leaf in leaves]
        if sizes in (list(part.categories), [choices]):
            return np.asarray(np.concatenate(leaves) != 0, np.int8)
    by_part = _by_part(mask, part) if isinstance(part, CompositeSpec) else None
    if by_part is None:
        raise _misfit(mask, part)
    return np.concatenate([_flags(one, of) for one, of in by_part])


def _by_part(mask: Any, part: CompositeSpec) -> list[tuple[Any, Part]] | None:
    """The parts of a mask, each with what it is for; None where it has others."""
    if part.names is not None and isinstance(mask, Mapping) and set(mask) <= set(part.names):
        return [(mask.get(name), one) for name, one in zip(part.names, part.parts, strict=True)]
    if isinstance(mask, tuple | list) and len(mask) == len(part.parts):
        return list(zip(mask, part.parts, strict=True))
    return None


def _leaves(mask: Any) -> list[Array] | None:
    """The arrays of a mask, nested or not, in order; None where a part has a name, or none at all."""
    if mask is None or isinstance(mask, Mapping):
        return None
    ragged = isinstance(mask, np.ndarray) and mask.dtype == object
    if not (ragged or isinstance(mask, tuple | list)) or all(np.isscalar(x) or _is_single(x) for x in mask):
        return [np.ravel(mask)]
    leaves = [_leaves(one) for one in mask]
    return None if None in leaves else [leaf for some in leaves if some is not None for leaf in some]


def _is_single(flag: Any) -> bool:
    """Whether it is an array, or a tensor, of no axis."""
    return getattr(flag, "ndim", None) == 0


def _misfit(mask: Any, part: Part) -> ConfigurationError:
    leaves = _leaves(mask)
    if leaves is not None:
        found = f"shape {', '.join(str(leaf.shape) for leaf in leaves)}"
    else:
        found = f"the parts {list(mask)}" if isinstance(mask, Mapping) else f"{len(mask)} parts"
    return ConfigurationError(
        f'info["{MASK}"] has {found}; the action space has '
        f"{sum(part.categories)} choices, one flag for each: {list(part.categories)}"
    )
