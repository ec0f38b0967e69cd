"""The networks, in torch: the learner trains them; `acting.py` plays the same policy in numpy.

Initialised orthogonally (gain sqrt 2 for hidden layers, 0.01 for the policy head, 1 for the value
head; arXiv:2006.05990 finds the small policy head to matter most).
"""

import itertools
import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dppo_redis.spaces import ActionSpec, BoxSpec, FloatArray

Activation = Literal["tanh", "relu"]
POLICY_PREFIX = "policy."
LOG_STD = "log_std"


class ActorCritic(nn.Module):
    """Separate policy and value networks over vector observations."""

    def __init__(
        self, observation_size: int, action: ActionSpec, hidden: tuple[int, ...], activation: Activation
    ) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.continuous = isinstance(action, BoxSpec)
        self.policy = _mlp(observation_size, hidden, action.outputs, activation, head_gain=0.01)
        self.value = _mlp(observation_size, hidden, 1, activation, head_gain=1.0)
        if self.continuous:
            self.log_std = nn.Parameter(torch.zeros(action.outputs))

    def values(self, observations: Tensor) -> Tensor:
        """State values [B] of observations [B, O]."""
        values: Tensor = self.value(observations).squeeze(-1)
        return values

    def log_probs_and_entropy(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability [B] of actions ([B] indices or [B, A] raw) and policy entropy [B]."""
        outputs = self.policy(observations)
        if self.continuous:
            return _gaussian(outputs, self.log_std, actions)
        return _categorical(outputs, actions)

    def acting_arrays(self) -> dict[str, FloatArray]:
        """Copies of what an actor needs, by parameter name; the value network stays here."""
        return {
            name: parameter.detach().cpu().numpy().astype(np.float32, copy=True)
            for name, parameter in self.named_parameters()
            if name.startswith(POLICY_PREFIX) or name == LOG_STD
        }


def _mlp(
    inputs: int, hidden: tuple[int, ...], outputs: int, activation: Activation, head_gain: float
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise((inputs, *hidden)):
        layers.append(_linear(width_in, width_out, math.sqrt(2)))
        layers.append(nn.Tanh() if activation == "tanh" else nn.ReLU())
    layers.append(_linear(hidden[-1], outputs, head_gain))
    return nn.Sequential(*layers)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _categorical(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(logits, dim=-1)
    chosen = log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return chosen, -(log_p.exp() * log_p).sum(-1)


def _gaussian(mean: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonal Gaussian: log p = -1/2 sum(((a - mu) / sigma)^2 + 2 log sigma + log 2 pi)."""
    z = (actions - mean) * torch.exp(-log_std)
    constant = log_std.sum() + 0.5 * mean.shape[-1] * math.log(2 * math.pi)
    entropy = log_std.sum() + 0.5 * mean.shape[-1] * (1 + math.log(2 * math.pi))
    return -0.5 * z.square().sum(-1) - constant, entropy.expand(mean.shape[0])
