"""The layout of two plain networks over vectors in one flat array of parameters. Pure numpy.

They are the networks of an `ActorCritic` without a trunk, a memory or a user's own network. The same layers
of both networks are side by side, so that they form one array of twice the size.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]  # float32 in training
_ALIGNMENT = 64  # bytes; the same in every process, because the last bits of a product may depend on it
_NETS = ("policy", "value")


@dataclass(frozen=True)
class PlainNetworks:
    """Sizes of a policy and a value network with the same hidden layers, at least one."""

    features: int
    hidden: tuple[int, ...]
    activation: Literal["tanh", "relu"]
    categories: tuple[int, ...]  # choices of each category of an action
    dimensions: int  # real numbers in an action

    @property
    def choices(self) -> int:
        """Logits; the policy head puts them before the means."""
        return sum(self.categories)

    @property
    def outputs(self) -> int:
        """Width of the policy head."""
        return self.choices + self.dimensions

    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names, as in `ActorCritic`, and shapes of the parameters in the order of the flat array."""
        found: list[tuple[str, tuple[int, ...]]] = []
        for i, (width_in, width_out) in enumerate(pairwise((self.features, *self.hidden))):
            found += [(f"{net}.{2 * i}.weight", (width_out, width_in)) for net in _NETS]
            found += [(f"{net}.{2 * i}.bias", (width_out,)) for net in _NETS]
        head = 2 * len(self.hidden)
        for net, width in zip(_NETS, (self.outputs, 1), strict=True):
            found += [(f"{net}.{head}.weight", (width, self.hidden[-1])), (f"{net}.{head}.bias", (width,))]
        return [*found, ("log_std", (self.dimensions,))] if self.dimensions else found

    @property
    def size(self) -> int:
        """Length of the flat array."""
        return sum(prod(shape) for _, shape in self.layout())


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros [*shape] in memory that begins at a multiple of 64 bytes."""
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class Layers:
    """The flat array of the parameters, or of their gradient, as layers; views."""

    def __init__(self, networks: PlainNetworks, flat: Floats) -> None:
        taken = 0

        def take(*shape: int) -> Floats:
            nonlocal taken
            taken += prod(shape)
            return flat[taken - prod(shape) : taken].reshape(shape)

        self.weights: list[Floats] = []  # of both networks, [2, out, in]
        self.biases: list[Floats] = []  # [2 out]
        for width_in, width_out in pairwise((networks.features, *networks.hidden)):
            self.weights.append(take(2, width_out, width_in))
            self.biases.append(take(2 * width_out))
        width, outputs = networks.hidden[-1], networks.outputs
        self.policy, self.policy_bias = take(outputs, width), take(outputs)
        self.value, self.value_bias = take(1, width), take(1)
        self.log_std = take(networks.dimensions)


class Seen(NamedTuple):
    """Inputs of the networks and actions, of B rows."""

    features: Floats  # [B, F]
    mask: npt.NDArray[np.bool_] | None  # [choices, B], allowed ones
    chosen: npt.NDArray[np.int64]  # [K, B], place among all logits of each category's choice
    values: Floats  # [A, B], raw real numbers of the actions


class Targets(NamedTuple):
    """The targets of the loss for the same rows, each [B]."""

    old_log_probs: Floats
    weights: Floats
    advantages: Floats  # normalised
    returns: Floats
    old_values: Floats


class HeadBuffers:
    """The part of `Buffers` that belongs to the policy's outputs."""

    def __init__(self, networks: PlainNetworks, count: int, dtype: npt.DTypeLike) -> None:
        categories = len(networks.categories)
        self.probabilities = aligned((networks.outputs, count), dtype)
        self.spare = aligned((networks.outputs, count), dtype)
        self.per_category = aligned((categories, 1, count), dtype)
        self.negative_entropies = aligned((categories, 1, count), dtype)
        self.chosen_log_probs = aligned((categories, count), dtype)
        self.index = np.zeros((categories, count), np.int64)
        self.columns = np.arange(count)


class Buffers:
    """The working arrays for B rows."""

    def __init__(self, networks: PlainNetworks, count: int, dtype: npt.DTypeLike) -> None:
        def rows(*shape: int) -> npt.NDArray[Any]:
            return aligned((*shape, count), dtype)

        self.hidden = [rows(2, width) for width in networks.hidden]
        self.backward = [rows(2 * max(networks.hidden)) for _ in range(2)]  # of a layer, and of the one below
        self.outputs, self.outputs_backward = rows(networks.outputs), rows(networks.outputs)
        self.state_values, self.state_values_backward = rows(1), rows(1)
        self.heads = HeadBuffers(networks, count, dtype)
        self.log_probs, self.entropy = rows(), rows()
        self.scratch = [rows() for _ in range(6)]
        self.flags = [np.zeros(count, np.bool_) for _ in range(2)]
        self.ones = np.add(rows(), 1)
