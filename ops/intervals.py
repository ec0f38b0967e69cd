"""Intervals of a mean, by Student's t."""

import math
from statistics import NormalDist

_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 %, of 1 to 9 degrees


def half_width(std: float, count: int) -> float | None:
    """Of the 95 % interval of a mean, t s / sqrt(n - 1); None for one value, which has none.

    `std` is the standard deviation s of the n values, with n below its root.
    """
    return student_t(count - 1) * std / math.sqrt(count - 1) if count > 1 else None


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, from 10 degrees of freedom on expanded in their inverse.

    Abramowitz and Stegun, 26.7.5; within 0.01 % there.
    """
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))
