"""The highest sequence number taken of each actor boot, by which duplicates are known. Pure.

The checkpoint keeps these numbers.
"""

from collections import OrderedDict

from dppo_redis.protocol.rollout import RolloutHeader

_BOOTS_KEPT = 10_000
_LEFT_OUT_KEPT = 64  # sequence numbers of one boot


class LastSequenceNumbers:
    """The highest sequence number taken of each actor boot; bounded, the oldest boot is forgotten first.

    One number per boot is enough, because an actor never sends seq k+1 while k is undecided. Only suspect
    entries are opened after later ones. For them this process remembers the few lower numbers that were left
    out.
    """

    def __init__(self, last_sequence_numbers: dict[str, int] | None = None) -> None:
        self._last = OrderedDict(last_sequence_numbers or {})
        self._left_out: dict[str, set[int]] = {}

    def is_duplicate(self, header: RolloutHeader) -> bool:
        """Whether this rollout was taken before, or may have been."""
        below = header.seq <= self._last.get(header.boot, 0)
        return below and header.seq not in self._left_out.get(header.boot, ())

    def take(self, header: RolloutHeader) -> None:
        """Remember that this rollout was taken."""
        last = self._last.get(header.boot, 0)
        left_out = self._left_out.pop(header.boot, set()) - {header.seq}
        if header.seq - last <= _LEFT_OUT_KEPT:
            left_out.update(range(last + 1, header.seq))
        if left_out:
            self._left_out[header.boot] = set(sorted(left_out)[-_LEFT_OUT_KEPT:])
        self._last[header.boot] = max(last, header.seq)
        self._last.move_to_end(header.boot)
        if len(self._last) > _BOOTS_KEPT:
            forgotten, _ = self._last.popitem(last=False)
            self._left_out.pop(forgotten, None)

    def to_dict(self) -> dict[str, int]:
        """Plain values for the checkpoint."""
        return dict(self._last)
