"""Policy and value, in torch: the learner trains them, actors play the same policy (`numpy_policy.py`)."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dppo_redis.policy.custom import CustomNetwork, load_custom
from dppo_redis.policy.networks import Inputs, InputSizes, Memory, Trunk, mlp
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.features import FORBIDDEN
from dppo_redis.spaces.observations import Array, FloatArray

LOG_STD = "log_std"
_LEARNER_ONLY = "value."  # prefix of the parameters that acting does not need


@dataclass(frozen=True)
class Actions:
    """Rows of actions as tensors."""

    categories: Tensor  # [B, K] int64
    values: Tensor  # [B, A] float32, raw

    def take(self, index: Tensor | slice) -> "Actions":
        """The rows at `index`, a slice or a tensor [b] of row numbers."""
        return Actions(self.categories[index], self.values[index])


def to_actions(spec: ActionSpec, rows: Array, device: torch.device) -> Actions:
    """Rows [B, *row_shape] of actions as tensors."""
    categories, values = spec.split(rows)
    return Actions(
        torch.from_numpy(categories.copy()).to(device),
        torch.from_numpy(values.copy()).to(device),
    )


@dataclass(frozen=True)
class Evaluated:
    """Outputs of the networks for B rows, each [B]."""

    log_probs: Tensor  # of the actions given
    entropy: Tensor  # of the policy
    values: Tensor  # of the states


class ActorCritic(nn.Module):
    """Policy and value networks of a run.

    For vectors alone they are two separate networks. With an image or a memory they share a trunk and have
    linear heads. They are always in evaluation mode, because with dropout or batch statistics the learner
    would see another policy than the actors.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        network, self.action = spec.network, spec.action
        sizes = InputSizes.of(spec.observation, spec.frame_stack)
        self.trunk: Trunk | None = None
        self.memory: Memory | None = None
        self.custom: CustomNetwork | None = None
        if spec.action.dimensions:
            self.log_std = nn.Parameter(torch.zeros(spec.action.dimensions))
        if network.custom is not None:
            self.custom = load_custom(network.custom, sizes, spec.action.outputs)
            return
        hidden, width = network.hidden, sizes.features
        if sizes.images or network.memory != "none":
            self.trunk = Trunk(sizes, network.hidden, network.activation)
            hidden, width = (), self.trunk.width
        if network.memory != "none":
            self.memory = Memory(width, network.memory_size, network.memory)
            width = network.memory_size
        self.policy = mlp(width, hidden, spec.action.outputs, network.activation, head_gain=0.01)
        self.value = mlp(width, hidden, 1, network.activation, head_gain=1.0)

    def outputs(self, inputs: Inputs) -> Tensor:
        """Logits and means [B, outputs]; the logits of forbidden choices are -1e8."""
        return self.masked(self._policy(inputs, self._features(inputs)), inputs.mask)

    def step(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Logits and means [B, outputs] for one step of B environments, and the memory [B, S] afterwards."""
        if self.memory is None or self.trunk is None or inputs.sequences is None:
            return self.outputs(inputs), inputs.vector[:, :0]
        features, state = self.memory(self.trunk(inputs), inputs.sequences)
        return self.masked(self.policy(features), inputs.mask), state

    def values(self, inputs: Inputs) -> Tensor:
        """State values [B]."""
        return self._value(inputs, self._features(inputs))

    def evaluate(self, inputs: Inputs, actions: Actions) -> Evaluated:
        """Log-probabilities of actions, entropy and state values, in one pass."""
        features = self._features(inputs)
        outputs = self.masked(self._policy(inputs, features), inputs.mask)
        log_probs, entropy = self.log_probs_and_entropy(outputs, actions)
        return Evaluated(log_probs, entropy, self._value(inputs, features))

    def states(self, inputs: Inputs) -> Tensor:
        """The memory after every row, [T, C, S]."""
        assert self.memory is not None
        assert self.trunk is not None
        assert inputs.sequences is not None
        return self.memory.states(self.trunk(inputs), inputs.sequences)

    def log_probs_and_entropy(self, outputs: Tensor, actions: Actions) -> tuple[Tensor, Tensor]:
        """Log-probability [B] of actions under outputs [B, outputs], and entropy [B]; sums over all parts."""
        log_probs, entropy = outputs.new_zeros(len(outputs)), outputs.new_zeros(len(outputs))
        logits = _split(outputs[:, : self.action.choices], self.action.categories)
        for index, one in enumerate(logits):
            chosen, spread = _categorical(one, actions.categories[:, index])
            log_probs, entropy = log_probs + chosen, entropy + spread
        if self.action.dimensions:
            means = outputs[:, self.action.choices :]
            chosen, spread = _gaussian(means, self.log_std, actions.values)
            log_probs, entropy = log_probs + chosen, entropy + spread
        return log_probs, entropy

    def acting_arrays(self) -> dict[str, FloatArray]:
        """Copies of the policy's parameters by name, each float32 in any shape; without the value head."""
        return {
            name: tensor.detach().cpu().numpy().astype(np.float32, copy=True)
            for name, tensor in self.state_dict().items()
            if not name.startswith(_LEARNER_ONLY)
        }

    def load_acting_arrays(self, arrays: Mapping[str, FloatArray]) -> None:
        """Load the policy's parameters by name, each in any shape; the value head stays as it is.

        Raises:
            RuntimeError: a parameter is missing, unknown or of another shape.
        """
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        own = {name: x for name, x in self.state_dict().items() if name.startswith(_LEARNER_ONLY)}
        empty = any(parameter.is_meta for parameter in self.parameters())
        self.load_state_dict({**own, **tensors}, assign=empty)

    def _features(self, inputs: Inputs) -> Tensor:
        if self.trunk is None:
            return inputs.vector
        features: Tensor = self.trunk(inputs)
        if self.memory is not None:
            assert inputs.sequences is not None, "a memory reads rows in their order"
            features, _ = self.memory(features, inputs.sequences)
        return features

    def _policy(self, inputs: Inputs, features: Tensor) -> Tensor:
        outputs: Tensor = self.policy(features) if self.custom is None else self.custom.policy(inputs)
        return outputs

    def _value(self, inputs: Inputs, features: Tensor) -> Tensor:
        if self.custom is not None:
            values: Tensor = self.custom.value(inputs)
            return values
        value: Tensor = self.value(features).squeeze(-1)
        return value

    def masked(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Outputs [B, outputs] with -1e8 as the logits of forbidden choices."""
        if mask is None:
            return outputs
        choices = self.action.choices
        logits = outputs[:, :choices].masked_fill(~mask, FORBIDDEN)
        return torch.cat((logits, outputs[:, choices:]), dim=-1)


def _split(logits: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    ends = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return tuple(logits[:, first:last] for first, last in ends)


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
