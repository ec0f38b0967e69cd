"""Converts rows of observations into the inputs of a network. Pure numpy.

Actor and learner use the same functions, so that both see the same numbers. With frame stacking rows are
[..., k, *row_shape], oldest first; else [..., *row_shape].
"""

import numpy as np

from dppo_redis.spaces.normaliser import normalise
from dppo_redis.spaces.observations import Array, BoolArray, Field, FloatArray, ObservationSpec

Normaliser = tuple[FloatArray, FloatArray]  # mean and inverse standard deviation, each [moments]
_KINDS = ("vector", "binary", "categories")  # in this order: normalised fields come first
FORBIDDEN = -1e8  # the logit of a choice that the mask forbids; finite, so that 0 log 0 is 0


def features(
    spec: ObservationSpec, rows: Array, frames: int = 1, normaliser: Normaliser | None = None
) -> FloatArray:
    """Vectors, flags and one-hot categories side by side: [..., F], or [..., k F] of stacked frames."""
    x = rows if spec.is_floats else _side_by_side(spec, rows)
    if normaliser is not None:
        known = normalise(x[..., : spec.moments], *normaliser)
        x = known if spec.moments == spec.size else np.concatenate([known, x[..., spec.moments :]], axis=-1)
    return x if frames == 1 else x.reshape(*x.shape[:-2], frames * spec.size)


def in_order(spec: ObservationSpec) -> list[Field]:
    """The fields that `features` puts side by side, in its order."""
    return [field for kind in _KINDS for field in spec.fields if field.kind == kind]


def observed(spec: ObservationSpec, rows: Array) -> FloatArray:
    """The features of which the normaliser keeps statistics, [..., moments]."""
    return features(spec, rows)[..., : spec.moments]


def images(spec: ObservationSpec, rows: Array, frames: int = 1) -> tuple[Array, ...]:
    """Bytes [..., C, H, W] of each image; stacked frames are further channels."""
    return tuple(_image(spec.part(rows, field), field, frames) for field in spec.images)


def mask(spec: ObservationSpec, rows: Array, frames: int = 1) -> BoolArray | None:
    """Allowed choices [..., choices]; None if the environment has no mask."""
    for field in spec.fields:
        if field.kind == "mask":
            allowed = spec.part(rows, field) > 0
            return allowed if frames == 1 else allowed[..., -1, :]
    return None


def _side_by_side(spec: ObservationSpec, rows: Array) -> FloatArray:
    parts = [_floats(spec, rows, field) for field in in_order(spec)]
    lead = rows.shape[: rows.ndim - len(spec.row_shape)]
    return np.concatenate([*parts, np.empty((*lead, 0), np.float32)], axis=-1)


def _floats(spec: ObservationSpec, rows: Array, field: Field) -> FloatArray:
    part = spec.part(rows, field)
    if field.kind != "categories":
        return part.astype(np.float32, copy=False)
    hot = np.zeros((*part.shape[:-1], sum(field.sizes)), np.float32)
    # A category outside its space counts as the nearest one here: a later check refuses it.
    own = np.minimum(np.maximum(part, 0), np.asarray(field.sizes) - 1)
    np.put_along_axis(hot, own + np.cumsum((0, *field.sizes))[:-1], np.float32(1), axis=-1)
    return hot


def _image(part: Array, field: Field, frames: int) -> Array:
    lead = part.shape[: part.ndim - len(field.shape)]
    part = part.reshape(*lead, 1, *part.shape[-2:]) if len(field.shape) == 2 else part
    if not field.channels_first:
        part = np.moveaxis(part, -1, -3)
    channels, height, width = field.image_shape
    return part if frames == 1 else part.reshape(*lead[:-1], frames * channels, height, width)


def episode_starts(ends: BoolArray, valid: BoolArray) -> BoolArray:
    """[T, N], rows that begin an episode; never the first row, because the rollout carries its past.

    The row after an end begins an episode, and so does the row after a dummy row of a reset.
    """
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] | ~valid[:-1]
    return starts


def stack_frames(rows: Array, before: Array, starts: BoolArray) -> Array:
    """The k last frames at every row [T, N, k, ...], oldest first, from single frames as on the wire.

    Args:
        rows: [T, N, ...].
        before: [N, k - 1, ...], the frames before the first row, as the actor saw them.
        starts: [T, N], rows that begin an episode: the frames before it are copies of its first one.
    """
    steps, count = starts.shape
    past = before.shape[1]
    if past == 0:
        return rows[:, :, None]
    frames = np.concatenate([np.moveaxis(before, 1, 0), rows])
    t = np.arange(steps)[:, None]
    first = np.maximum.accumulate(np.where(starts, t, -past), axis=0)  # row at which the episode began
    index = np.maximum(t[..., None] - np.arange(past, -1, -1), first[..., None]) + past
    result: Array = frames[index, np.arange(count)[:, None]]
    return result


def push_frame(stacked: Array, newest: Array) -> Array:
    """Stacked frames [B, k, ...] one step later: the oldest leaves, `newest` [B, ...] comes in."""
    return np.concatenate([stacked[:, 1:], newest[:, None]], axis=1)
