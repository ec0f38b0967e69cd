"""Confidence intervals of a mean, by Student's t. Only this module uses mpmath, which torch installs."""

import math

import mpmath


def half_width(std: float, count: int) -> float | None:
    """Half the width of a mean's 95 % interval, t s / sqrt(n - 1); None for a single value.

    `std` is the standard deviation s of the n values: the root of their mean squared deviation.
    """
    return student_t(count - 1) * std / math.sqrt(count - 1) if count > 1 else None


def student_t(freedom: int) -> float:
    """The 97.5 % quantile t of Student's distribution with n degrees of freedom: I(n / (n + t^2); n/2, 1/2) =
    5 %."""

    def excess(t: float) -> mpmath.mpf:
        x = freedom / (freedom + t * t)
        return mpmath.betainc(freedom / 2, 0.5, 0, x, regularized=True) - 0.05

    return float(mpmath.findroot(excess, (1.9, 13.0), solver="anderson"))
