"""Computes the gradient of PPO's loss for two plain networks over vectors by explicit formulas. Pure numpy.

The loss is that of `loss.py`. These networks are so small that autograd's own work takes most of a gradient
step. This module makes about 80 calls of numpy instead; property tests compare every formula with autograd.
The rows are the last axis of all arrays, [..., B]. So adding a bias and summing over outputs are long loops,
and both networks are computed together. The buffers of a minibatch size are kept from step to step.
"""

from dataclasses import dataclass

import numpy as np

from dppo_redis.spaces.features import FORBIDDEN
from learner.ppo.corrections import LOG_RATIO_LIMIT
from learner.ppo.plain.action_heads import ActionHeads
from learner.ppo.plain.networks import Buffers, Floats, Layers, PlainNetworks, Seen, Targets, aligned

_BUFFERED_SIZES = 2  # of minibatches; all of a pass have one size except the last


@dataclass(frozen=True)
class Terms:
    """The settings of the loss in one update; `loss.ppo_loss` defines them."""

    clip_epsilon: float
    value_coef: float
    entropy_coef: float
    dual_clip: float | None
    value_clip: float | None


class PlainGradient:
    """Loss and gradient at the parameters in `flat`, which the optimiser changes between two calls."""

    def __init__(self, networks: PlainNetworks, flat: Floats) -> None:
        self.networks = networks
        self.gradient = aligned((networks.size,), flat.dtype)  # of the last call
        self._at, self._to = Layers(networks, flat), Layers(networks, self.gradient)
        self._buffers: dict[int, Buffers] = {}
        self._relu = networks.activation == "relu"
        self._heads = ActionHeads(networks)

    def evaluate(self, seen: Seen) -> tuple[Floats, Floats]:
        """Log-probabilities and state values of B rows; views that the next call overwrites."""
        at = self._buffers_for(len(seen.features))
        with np.errstate(all="ignore"):  # the caller checks for values that are not finite
            self._forward(at, seen)
            self._heads.forward(at, seen, self._at.log_std)
        return at.log_probs, at.state_values[0]

    def step(self, seen: Seen, targets: Targets, terms: Terms) -> Floats:
        """Compute the gradient [P] of the mean loss into `gradient`.

        Returns:
            Policy loss, value loss, entropy, approximate KL divergence and clip fraction.
        """
        at = self._buffers_for(len(seen.features))
        with np.errstate(all="ignore"):
            self._forward(at, seen)
            self._heads.forward(at, seen, self._at.log_std)
            policy_loss, kl, clip_fraction, by_log_prob = _surrogate(at, targets, terms)
            self._heads.backward(
                at, seen, self._at.log_std, by_log_prob, terms.entropy_coef, self._to.log_std
            )
            value_loss = _value_backward(at, targets, terms)
            self._backward(at, seen)
            entropy = np.add.reduce(at.entropy) / len(at.entropy)
        return np.array([policy_loss, value_loss, entropy, kl, clip_fraction])

    def _buffers_for(self, count: int) -> Buffers:
        found = self._buffers.get(count)
        if found is None:
            if len(self._buffers) == _BUFFERED_SIZES:
                del self._buffers[min(self._buffers)]  # a short last minibatch
            found = self._buffers[count] = Buffers(self.networks, count, self.gradient.dtype)
        return found

    def _forward(self, at: Buffers, seen: Seen) -> None:
        """Compute h_0 = x, h_i = f(W_i h_{i-1} + b_i) for both networks, then the heads, W h + b."""
        for i, (weight, bias, out) in enumerate(
            zip(self._at.weights, self._at.biases, at.hidden, strict=True)
        ):
            both = out.reshape(-1, out.shape[-1])
            if i == 0:  # both read the same
                np.matmul(weight.reshape(len(both), -1), seen.features.T, out=both)
            else:
                np.matmul(weight, at.hidden[i - 1], out=out)
            both += bias[:, None]
            if self._relu:
                np.maximum(both, 0, out=both)
            else:
                np.tanh(both, out=both)
        policy, value = at.hidden[-1]
        np.matmul(self._at.policy, policy, out=at.outputs)
        at.outputs += self._at.policy_bias[:, None]
        np.matmul(self._at.value, value, out=at.state_values)
        at.state_values += self._at.value_bias
        if seen.mask is not None:
            np.copyto(at.outputs[: self.networks.choices], FORBIDDEN, where=~seen.mask)

    def _backward(self, at: Buffers, seen: Seen) -> None:
        """Propagate the gradient from the outputs to all weights and biases.

        dL/dW_i = dL/dz_i h_{i-1}^T,   dL/db_i = dL/dz_i 1,   dL/dh_{i-1} = W_i^T dL/dz_i
        dL/dz_i = dL/dh_i f'(z_i),     f' = 1 - h^2 of tanh, h > 0 of relu
        """
        policy, value = at.hidden[-1]
        back, below = (b[: 2 * len(policy)].reshape(2, -1, len(at.ones)) for b in at.backward)
        np.matmul(at.outputs_backward, policy.T, out=self._to.policy)
        np.matmul(at.outputs_backward, at.ones, out=self._to.policy_bias)
        np.matmul(at.state_values_backward, value.T, out=self._to.value)
        np.matmul(at.state_values_backward, at.ones, out=self._to.value_bias)
        np.matmul(self._at.policy.T, at.outputs_backward, out=back[0])
        np.multiply(self._at.value.T, at.state_values_backward, out=back[1])
        for i in reversed(range(len(at.hidden))):
            h, weight, to = at.hidden[i], self._at.weights[i], self._to.weights[i]
            if self._relu:
                np.sign(h, out=h)
            else:
                np.multiply(h, h, out=h)
                np.subtract(1, h, out=h)
            back *= h
            both = back.reshape(-1, len(at.ones))
            np.matmul(both, at.ones, out=self._to.biases[i])
            if i == 0:
                np.matmul(both, seen.features, out=to.reshape(len(both), -1))
                return
            np.matmul(back, at.hidden[i - 1].transpose(0, 2, 1), out=to)
            below = at.backward[(len(at.hidden) - i) % 2][: 2 * weight.shape[2]].reshape(2, -1, len(at.ones))
            np.matmul(weight.transpose(0, 2, 1), back, out=below)
            back = below


def _surrogate(at: Buffers, targets: Targets, terms: Terms) -> tuple[float, float, float, Floats]:
    """Policy loss, approximate KL divergence, clip fraction, and g = dL/d log p [B].

    g = -w rho A / B,   or 0 if the clip, the dual clip or LOG_RATIO_LIMIT limits the row
    """
    count = len(at.log_probs)
    held, ratio, clipped, kept, surrogate, g = at.scratch
    blocked, flag = at.flags
    np.subtract(at.log_probs, targets.old_log_probs, out=g)
    np.maximum(g, -LOG_RATIO_LIMIT, out=held)
    np.minimum(held, LOG_RATIO_LIMIT, out=held)
    np.not_equal(g, held, out=blocked)
    np.exp(held, out=ratio)
    np.maximum(ratio, 1 - terms.clip_epsilon, out=clipped)
    np.minimum(clipped, 1 + terms.clip_epsilon, out=clipped)
    np.multiply(ratio, targets.advantages, out=g)
    np.multiply(clipped, targets.advantages, out=kept)
    blocked |= np.greater(g, kept, out=flag)
    np.minimum(g, kept, out=surrogate)
    if terms.dual_clip is not None:
        np.multiply(targets.advantages, terms.dual_clip, out=kept)
        np.less(surrogate, kept, out=flag)
        flag &= targets.advantages < 0
        np.copyto(surrogate, kept, where=flag)
        blocked |= flag
    g *= targets.weights
    g *= -1 / count
    np.copyto(g, 0, where=blocked)
    clip_fraction = np.count_nonzero(np.not_equal(ratio, clipped, out=flag)) / count
    ratio -= 1
    ratio -= held
    policy_loss = -float(np.dot(targets.weights, surrogate)) / count
    return policy_loss, float(np.add.reduce(ratio)) / count, clip_fraction, g


def _value_backward(at: Buffers, targets: Targets, terms: Terms) -> float:
    """The value loss; writes dL/dV = c_v (V - R) / B, or 0 if the value clip limits the row."""
    v, back = at.state_values[0], at.state_values_backward[0]
    np.subtract(v, targets.returns, out=back)
    if terms.value_clip is None:
        loss = float(np.dot(back, back))
    else:
        errors, held, moved = at.scratch[0], at.scratch[1], at.scratch[2]
        np.subtract(v, targets.old_values, out=moved)
        np.clip(moved, -terms.value_clip, terms.value_clip, out=held)
        beyond = held != moved
        held += targets.old_values
        held -= targets.returns
        np.multiply(held, held, out=held)
        np.multiply(back, back, out=errors)
        beyond &= held > errors
        loss = float(np.add.reduce(np.maximum(errors, held, out=errors)))
        np.copyto(back, 0, where=beyond)
    back *= terms.value_coef / len(v)
    return 0.5 * loss / len(v)
