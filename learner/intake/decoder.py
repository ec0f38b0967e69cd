"""Decodes and checks the payloads of one run's rollouts; a known layout is decoded without parsing.

Payloads with the same number of ended episodes differ only in the numbers of their arrays; the bytes around
the numbers are equal. The decoder parses and checks these bytes once per layout. A later payload with the
same bytes around its numbers has the same structure, so its arrays are views at known places.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, check_layout, check_values
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, rollout_pieces

_LAYOUTS_KEPT = 64


class _Place(NamedTuple):
    """The position of one array's numbers in every payload of a layout, and the bytes before them."""

    before: bytes
    at: int  # offset of `before`
    numbers: int  # offset of the numbers
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _Layout(NamedTuple):
    """Where the arrays of a payload are: first those of the metrics with these names, then `ARRAY_NAMES`."""

    metrics: tuple[str, ...]
    places: list[_Place]

    def decode(self, payload: bytes) -> Rollout | None:
        """The rollout of a payload with this layout; None for another one, or flags other than 0 and 1."""
        arrays: list[Any] = []
        for before, at, numbers, dtype, shape in self.places:
            if not payload.startswith(before, at):
                return None
            arrays.append(np.ndarray(shape, dtype, payload, numbers))
        count = len(self.metrics)
        rollout = Rollout(*arrays[count:], metrics=dict(zip(self.metrics, arrays[:count], strict=True)))
        ends = rollout.terminated.view(np.uint8) | rollout.truncated.view(np.uint8)
        if (ends | rollout.valid.view(np.uint8)).max(initial=0) > 1:
            return None
        return rollout if np.count_nonzero(ends) == len(rollout.final_observations) else None


class RolloutDecoder:
    """Decodes and validates the rollouts of one run."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._layouts: OrderedDict[int, _Layout] = OrderedDict()  # by length of the payload

    def decode(self, payload: bytes) -> Rollout:
        """The rollout; its arrays are read-only views of `payload`, if it is packed as `protocol.wire` packs.

        Raises:
            WireError: in the same cases as `decode_rollout` and `validate`, for known layouts, too.
        """
        layout = self._layouts.get(len(payload))
        rollout = None if layout is None else layout.decode(payload)
        if rollout is not None:
            self._layouts.move_to_end(len(payload))
        else:
            rollout = decode_rollout(payload, self.spec)
            check_layout(rollout, self.spec)
            rollout = self._remember(payload, rollout)
        check_values(rollout, self.spec)
        return rollout

    def _remember(self, payload: bytes, rollout: Rollout) -> Rollout:
        """Remember the layout of a checked payload, if it is packed as usual; returns the rollout."""
        arrays = [*rollout.metrics.values(), *(getattr(rollout, name) for name in ARRAY_NAMES)]
        places, at = [], 0
        for (before, _), array in zip(rollout_pieces(rollout), arrays, strict=True):
            numbers = at + len(before)
            places.append(_Place(before, at, numbers, array.dtype, array.shape))
            at = numbers + array.nbytes
        layout = _Layout(tuple(rollout.metrics), places)
        views = layout.decode(payload) if at == len(payload) else None
        if views is None:
            return rollout
        self._layouts[at] = layout
        if len(self._layouts) > _LAYOUTS_KEPT:
            self._layouts.popitem(last=False)
        return views
