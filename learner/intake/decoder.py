"""Decodes and checks the payloads of one run's rollouts; a known layout is decoded without parsing.

Payloads with the same number of ended episodes differ only in the numbers of their arrays; the bytes around
the numbers are equal. The decoder parses and checks these bytes once per layout. A later payload with the
same bytes around its numbers has the same structure, so the decoder only slices it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, check_layout, check_values
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, frame
from dppo_redis.spaces.observations import Array

_LAYOUTS_KEPT = 64


class _Place(NamedTuple):
    """The position of one array's numbers in every payload of a layout, and the bytes before them."""

    before: bytes
    at: int  # offset of `before`
    numbers: slice
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class RolloutDecoder:
    """Decodes and validates the rollouts of one run."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._layouts: OrderedDict[int, list[_Place]] = OrderedDict()  # by length of the payload

    def decode(self, payload: bytes) -> Rollout:
        """The rollout; its arrays are read-only and own their memory.

        Raises:
            WireError: in the same cases as `decode_rollout` and `validate`, for known layouts, too.
        """
        places = self._layouts.get(len(payload))
        rollout = None if places is None else _cut(payload, places)
        if rollout is not None:
            self._layouts.move_to_end(len(payload))
        else:
            rollout = decode_rollout(payload, self.spec)
            check_layout(rollout, self.spec)
            self._remember(payload, rollout)
        check_values(rollout, self.spec)
        return rollout

    def _remember(self, payload: bytes, rollout: Rollout) -> None:
        """Remember the layout of a checked payload, if it is packed as `protocol.wire` packs."""
        places, at = [], 0
        for name, before in zip(ARRAY_NAMES, frame(rollout), strict=True):
            array: Array = getattr(rollout, name)
            start = at + len(before)
            end = start + array.nbytes
            places.append(_Place(before, at, slice(start, end), array.dtype, array.shape))
            at = end
        if at == len(payload) and _cut(payload, places) is not None:
            self._layouts[at] = places
            if len(self._layouts) > _LAYOUTS_KEPT:
                self._layouts.popitem(last=False)


def _cut(payload: bytes, places: Sequence[_Place]) -> Rollout | None:
    """The rollout of a payload with this layout; None for another layout, or flags other than 0 and 1."""
    arrays: list[Any] = []
    for before, at, numbers, dtype, shape in places:
        if not payload.startswith(before, at):
            return None
        arrays.append(np.ndarray(shape, dtype, payload[numbers]))
    rollout = Rollout(*arrays)
    ends = rollout.terminated.view(np.uint8) | rollout.truncated.view(np.uint8)
    if (ends | rollout.valid.view(np.uint8)).max(initial=0) > 1:
        return None
    return rollout if np.count_nonzero(ends) == len(rollout.final_observations) else None
