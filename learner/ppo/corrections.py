"""Corrections for old data: the reference policy of PPO's ratio, and the weight of each row. Pure numpy.

Three policies meet in an update: mu, the behaviour policy, sampled a row `staleness` updates ago; pi_prox,
the proximal one, is the learner's before the first step of the update; pi is the one being trained. Every
correction is one choice of reference, weight and advantage in the same surrogate,

    L = -mean(w min(r A, clip(r, 1 - eps, 1 + eps) A)),    r = pi / reference

    none       reference mu,       w = 1,                      A by GAE
    decoupled  reference pi_prox,  w = pi_prox / mu,           A by GAE
    tis        reference pi_prox,  w = min(c, pi_prox / mu),   A by GAE
    vtrace     reference pi_prox,  w = min(1, pi_prox / mu),   A and value targets by V-trace

and where pi_prox = mu, as with fresh data, all are plain PPO, bit for bit. The value loss is never weighted.
"""

from dataclasses import dataclass

import numpy as np

from dppo_redis.protocol.config import Correction
from dppo_redis.spaces.observations import FloatArray
from learner.ppo.advantages import gae

LOG_RATIO_LIMIT = 20.0  # a ratio of 5e8 or its inverse; its square is still finite in float32
_RHO_BAR = _C_BAR = np.float32(1)  # of V-trace, as in IMPALA


@dataclass(frozen=True)
class Estimates:
    """The inputs of the surrogate and the value loss; all [T, N]."""

    advantages: FloatArray
    returns: FloatArray  # targets of the critic
    old_log_probs: FloatArray  # of the policy that the ratio is taken against
    weights: FloatArray  # importance weight of the surrogate


@dataclass(frozen=True)
class Trajectories:
    """The values of a batch that are known before the first gradient step; all [T, N]."""

    rewards: FloatArray
    values: FloatArray
    successors: FloatArray  # V of the state that the action led to, see `advantages.successor_values`
    ends: FloatArray  # 1.0 where an episode ended, for either reason
    behaviour: FloatArray  # log-probabilities under mu
    proximal: FloatArray  # under pi_prox; those of rows that are not valid equal mu's


def log_ratios(proximal: FloatArray, behaviour: FloatArray) -> FloatArray:
    """log(pi_prox / mu), any shape, clipped to +-LOG_RATIO_LIMIT; NaN becomes the lower limit."""
    with np.errstate(invalid="ignore", over="ignore"):
        held: FloatArray = np.clip(proximal - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return np.where(np.isnan(held), np.float32(-LOG_RATIO_LIMIT), held)


def estimate(
    correction: Correction, batch: Trajectories, gamma: float, gae_lambda: float, importance_cap: float
) -> Estimates:
    """Advantages, targets, reference and weights of a batch under one correction.

    All arrays of the result are [T, N].

    decoupled: the decoupled clipped objective of Hilton, Cobbe and Schulman (arXiv:2110.00641). As in the
    paper the weight is not truncated: the gradient stays unbiased, but a few rows may outweigh a minibatch.
    Their proximal policy is an average of recent ones, ours is the newest.

    tis: the same with weights of at most `importance_cap`, which adds a little bias and bounds the variance.
    The cap limits only rows that have become more likely. Rows that have become less likely count less in
    both corrections.

    vtrace: IMPALA's policy gradient is rho A grad log pi with A from V-trace. With pi_prox as the reference
    that is the gradient of the first step, and the clip is a trust region around the newest policy. With mu
    as the reference, the ratio would contain pi / mu once more beside rho.
    """
    ratios = np.exp(log_ratios(batch.proximal, batch.behaviour))
    if correction == "vtrace":
        advantages, returns = vtrace(batch, ratios, gamma, gae_lambda)
        return Estimates(advantages, returns, batch.proximal, np.minimum(_RHO_BAR, ratios))
    advantages = gae(batch.rewards, batch.values, batch.successors, batch.ends, gamma, gae_lambda)
    returns = advantages + batch.values
    if correction == "none":
        return Estimates(advantages, returns, batch.behaviour, np.ones_like(advantages))
    cap = np.float32(importance_cap if correction == "tis" else np.inf)
    return Estimates(advantages, returns, batch.proximal, np.minimum(cap, ratios))


def vtrace(
    batch: Trajectories, ratios: FloatArray, gamma: float, gae_lambda: float
) -> tuple[FloatArray, FloatArray]:
    """Advantages, without their weight rho, and value targets; [T, N] each (arXiv:1802.01561, equation 1).

        d_t = r_t + gamma V(s_{t+1}) - V(s_t),  rho_t = c_t = min(1, pi_prox / mu)
        v_t - V(s_t) = rho_t d_t + gamma lambda c_t (1 - e_t) (v_{t+1} - V(s_{t+1}))
        A_t = d_t + gamma lambda (1 - e_t) (v_{t+1} - V(s_{t+1}))

    The paper's A_t is that of lambda 1, r_t + gamma v_{t+1} - V(s_t); with lambda in both, as rlax has it,
    ratios of 1 give GAE. Episode ends are those of `advantages.gae`: `e_t`, and `successors`.
    """
    deltas = batch.rewards + np.float32(gamma) * batch.successors - batch.values
    keep = np.float32(gamma * gae_lambda) * (1 - batch.ends)
    rho, c = np.minimum(_RHO_BAR, ratios), np.minimum(_C_BAR, ratios)
    advantages = np.empty_like(deltas)
    excess = np.empty_like(deltas)  # v_t - V(s_t)
    following = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        advantages[t] = deltas[t] + keep[t] * following
        following = rho[t] * deltas[t] + keep[t] * c[t] * following
        excess[t] = following
    return advantages, excess + batch.values
