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

    The environment's mask has one flag for each choice. It may be one array, an array for each category, or
    the form that gymnasium's `space.sample(mask)` takes: a dict or tuple of the parts' masks, nested like the
    space, with None if all choices of a part are allowed.

    Without a mask all choices are allowed. So are all choices of a category in which the mask allows none, as
    in a final state, because the policy must draw a choice.

    Raises:
        ConfigurationError: the mask does not fit the choices of the action space.
    """
    if mask is not None and not action.choices:
        raise _misfit(mask, action.space)
    allowed = _flags(mask, action.space)
    for first, size in zip(action.offsets, action.categories, strict=True):
        if not allowed[first : first + size].any():
            allowed[first : first + size] = 1
    return allowed


def _flags(mask: Any, part: Part) -> Array:
    """The mask of one part of the action space, as a new array [its choices]."""
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
    """Each part of a mask with its part of the action space; None if their numbers or names differ."""
    if part.names is not None and isinstance(mask, Mapping) and set(mask) <= set(part.names):
        return [(mask.get(name), one) for name, one in zip(part.names, part.parts, strict=True)]
    if isinstance(mask, tuple | list) and len(mask) == len(part.parts):
        return list(zip(mask, part.parts, strict=True))
    return None


def _leaves(mask: Any) -> list[Array] | None:
    """The arrays of a mask, nested or not, in order; None if a part is named or missing."""
    if mask is None or isinstance(mask, Mapping):
        return None
    ragged = isinstance(mask, np.ndarray) and mask.dtype == object
    if not (ragged or isinstance(mask, tuple | list)) or all(np.isscalar(x) or _is_single(x) for x in mask):
        return [np.ravel(mask)]
    leaves = [_leaves(one) for one in mask]
    return None if None in leaves else [leaf for some in leaves if some is not None for leaf in some]


def _is_single(flag: Any) -> bool:
    """Whether a flag is an array, or a tensor, without axes."""
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
