"""The terms of PPO's loss (arXiv:1707.06347, equations 7 and 9). Pure functions of tensors.

Every per-row quantity has shape [B]; anything else raises instead of broadcasting.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.ppo.corrections import LOG_RATIO_LIMIT


@dataclass(frozen=True)
class Loss:
    """One minibatch's loss and its diagnostics; scalars."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    weights: Tensor,
    clip_epsilon: float,
    value_coef: float,
    entropy_coef: float,
    dual_clip: float | None = None,
    value_clip: float | None = None,
) -> Loss:
    """Clipped surrogate, squared value error and entropy bonus of rows; each tensor is [B].

        L = -mean(w min(rho A, clip(rho, 1 - eps, 1 + eps) A)) + c_v mean((V - R)^2) / 2 - c_e mean(H)

    `advantages` are normalised here, over the rows given, before the importance weights w count, which
    are 1 in the paper (see `corrections.py`). KL is estimated as mean(rho - 1 - log rho), which is never
    negative (Schulman, "Approximating KL divergence"). A row whose log rho lies beyond LOG_RATIO_LIMIT
    has no gradient, because one number that overflows would spoil the step of its whole minibatch.

    With `dual_clip` c the surrogate of a negative advantage is at least c A, so that one row of a
    very unlikely action cannot dominate (arXiv:1912.09729). With `value_clip` e the error is the
    larger of V's and that of V held within e of the value before the update (the OpenAI baselines).

    Raises:
        ValueError: two per-row quantities differ in shape.
    """
    _same_shape(log_probs, old_log_probs, advantages, values, old_values, returns, entropy, weights)
    advantages = normalise(advantages)
    log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is not None:
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, dual_clip * advantages), surrogate)
    policy = -(weights * surrogate).mean()
    errors = (values - returns).square()
    if value_clip is not None:
        held = old_values + (values - old_values).clamp(-value_clip, value_clip)
        errors = torch.maximum(errors, (held - returns).square())
    value = 0.5 * errors.mean()
    mean_entropy = entropy.mean()
    total = policy + value_coef * value - entropy_coef * mean_entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = (ratio != clipped).float().mean()
    return Loss(total, policy.detach(), value.detach(), mean_entropy.detach(), approx_kl, clip_fraction)


def normalise(advantages: Tensor) -> Tensor:
    """Advantages [B] with mean 0 and standard deviation 1; one row or equal rows give zeros, never NaN."""
    exact = advantages.double()  # in float32 the mean of equal numbers is not exactly theirs
    centred = exact - exact.mean()
    return (centred / (centred.square().mean().sqrt() + 1e-8)).to(advantages.dtype)


def _same_shape(*quantities: Tensor) -> None:
    shapes = {tuple(quantity.shape) for quantity in quantities}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"per-row quantities must all have one shape (B,), got {sorted(shapes)}")
