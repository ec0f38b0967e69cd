"""Measures the product and a peer in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Measure = Callable[[], float]


@dataclass(frozen=True)
class Compared:
    """Samples of a peer and of the product, taken in turn: neighbours ran under the same conditions."""

    peer: list[float]
    product: list[float]
    is_time: bool = True  # a smaller sample is better; else samples are rates

    @property
    def ratios(self) -> list[float]:
        """How fast the product is by the peer, of neighbours; 1 is as fast."""
        pairs = zip(self.peer, self.product, strict=True)
        return [peer / own if self.is_time else own / peer for peer, own in pairs]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest ratio."""
        return min(self.ratios), max(self.ratios)


def in_turn(peer: Measure, product: Measure, repeats: int) -> Compared:
    """Take `repeats` samples of each, after one of each that is not counted: it allocates and warms up."""
    peer(), product()
    samples = [(peer(), product()) for _ in range(repeats)]
    return Compared([one for one, _ in samples], [one for _, one in samples])
