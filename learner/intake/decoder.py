"""Decodes and checks the payloads of one run's rollouts; a known layout is decoded without parsing.

Payloads with the same number of ended episodes differ only in the numbers of their arrays; the bytes around
the numbers are equal. The decoder parses and checks these bytes once per layout. A later payload with the
same bytes around its numbers has the same structure, so its arrays are views at known places.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from dppo_redis.protocol.rollout import ARRAY_NAMES, Rollout, check_layout, check_values
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, rollout_pieces
from dppo_redis.spaces.episode_metrics import METRICS
from dppo_redis.spaces.observations import Array

_LAYOUTS_KEPT = 64


class _Layout(NamedTuple):
    """The form of a payload: the bytes between its arrays with their offsets, and the arrays."""

    between: list[tuple[bytes, int]]
    record: np.dtype[Any]  # the whole payload; its fields are the arrays, by name
    metrics: Mapping[str, str]  # of the environment: the field of each, by its name

    def decode(self, payload: bytes) -> Rollout | None:
        """The rollout of a payload with this layout; None for another one, or flags other than 0 and 1."""
        for part, at in self.between:
            if not payload.startswith(part, at):
                return None
        record: Array = np.ndarray((), self.record, payload)
        metrics = {name: record[field] for name, field in self.metrics.items()}
        rollout = Rollout(*map(record.__getitem__, ARRAY_NAMES), metrics=metrics)
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
        rollout = self.known(payload)
        if rollout is None:
            rollout = decode_rollout(payload, self.spec)
            check_layout(rollout, self.spec)
            rollout = self._remember(payload, rollout)
        check_values(rollout, self.spec)
        return rollout

    def known(self, payload: bytes) -> Rollout | None:
        """The rollout of a payload with a known layout, its numbers not checked; else None."""
        layout = self._layouts.get(len(payload))
        rollout = None if layout is None else layout.decode(payload)
        if rollout is not None:
            self._layouts.move_to_end(len(payload))
        return rollout

    def _remember(self, payload: bytes, rollout: Rollout) -> Rollout:
        """Remember the layout of a checked payload, if it is packed as usual; returns the rollout."""
        metrics = {name: f"{METRICS}.{name}" for name in rollout.metrics}
        arrays = {metrics[name]: array for name, array in rollout.metrics.items()}
        arrays |= {name: getattr(rollout, name) for name in ARRAY_NAMES}
        between, offsets, at = [], [], 0
        for (part, _), array in zip(rollout_pieces(rollout), arrays.values(), strict=True):
            between.append((part, at))
            offsets.append(at + len(part))
            at = offsets[-1] + array.nbytes
        forms = [(array.dtype, array.shape) for array in arrays.values()]
        record = {"names": list(arrays), "formats": forms, "offsets": offsets, "itemsize": at}
        layout = _Layout(between, np.dtype(cast(Any, record)), metrics)
        views = layout.decode(payload) if at == len(payload) else None
        if views is None:
            return rollout
        self._layouts[at] = layout
        if len(self._layouts) > _LAYOUTS_KEPT:
            self._layouts.popitem(last=False)
        return views
