"""Measures how far the learner's policy has moved from those that sampled a batch, by staleness. Pure numpy.

It is measured before the first gradient step of an update, so it shows the effect of the data's age alone.
Except for rounding, fresh rows have ratio 1, KL 0 and effective share 1.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dppo_redis.spaces.observations import FloatArray


@dataclass(frozen=True)
class Drift:
    """Drift of the rows of one staleness or of a whole batch; rho = pi_prox / mu as in `corrections.py`."""

    rows: int
    ratio: float  # mean(rho), near 1 while mu covers the learner's actions
    kl: float  # mean(rho - 1 - log rho), an estimate of KL(mu, pi_prox) that is never negative
    clip_fraction: float  # share of rows outside the clip range before any step
    effective_share: float  # effective sample size (sum rho)^2 / sum(rho^2), as a share of the rows


def drift(log_ratios: FloatArray, clip_epsilon: float) -> Drift:
    """Summarise log rho [B]; without rows, return the values of no drift."""
    if not len(log_ratios):
        return Drift(rows=0, ratio=1.0, kl=0.0, clip_fraction=0.0, effective_share=1.0)
    exact = log_ratios.astype(np.float64)
    rho = np.exp(exact)
    return Drift(
        rows=len(rho),
        ratio=float(rho.mean()),
        kl=float((np.expm1(exact) - exact).mean()),
        clip_fraction=float((np.abs(rho - 1) > clip_epsilon).mean()),
        effective_share=float(np.square(rho.sum()) / (len(rho) * np.square(rho).sum())),
    )


def by_staleness(
    log_ratios: FloatArray, staleness: npt.NDArray[np.int64], clip_epsilon: float
) -> dict[int, Drift]:
    """The drift of the rows [B] of each staleness [B] that occurs, freshest first."""
    return {int(age): drift(log_ratios[staleness == age], clip_epsilon) for age in np.unique(staleness)}
