"""The first and last layers of a policy's graph in torch: observation encoding and greedy actions."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dppo_redis.artefacts.layout import layout_of
from dppo_redis.policy.networks import Inputs
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import Weights
from ops.policies.graph_ports import torch_type


class ObservationEncoder(nn.Module):
    """Encodes the named parts of an observation, each [B, (k,) *shape], as a network's inputs.

    It computes the same numbers as `features`, `images` and `mask` of `dppo_redis.spaces.features`.
    """

    def __init__(self, weights: Weights, spec: Spec) -> None:
        super().__init__()
        layout = layout_of(spec)
        self.frames: int = layout["frame_stack"]
        self.numbers = [part for part in layout["input"] if part["tensor"] == "vector"]
        self.pictures = [part for part in layout["input"] if part["encoding"] == "image"]
        self.mask = layout["mask"]
        self.arrays = {
            name: torch.from_numpy(array.copy())
            for name, array in weights.arrays.items()
            if name not in weights.network_arrays()
        }

    def forward(self, fields: dict[str, Tensor]) -> Inputs:
        """The network's inputs, `vector` [B, F] and images [B, k C, H, W], from parts [B, (k,) *shape]."""
        first_field = next(iter(fields.values()))
        parts = [self._encode(part, fields[part["name"]]) for part in self.numbers]
        rows = first_field.shape[0]
        vector = torch.cat(parts, dim=-1).reshape(rows, -1) if parts else torch.zeros((rows, 0))
        pictures = tuple(self._picture(part, fields[part["name"]]) for part in self.pictures)
        allowed = None if self.mask is None else fields[self.mask["name"]].reshape(rows, -1) > 0
        return Inputs(vector, pictures, allowed)

    def _encode(self, part: dict[str, Any], x: Tensor) -> Tensor:
        """One part as [B, k, length]: frames stay separate, since the network reads whole frames side by
        side."""
        x = x.reshape(x.shape[0], self.frames, -1)
        if part["encoding"] == "one-hot":
            return torch.cat(list(_one_hot(part, x)), dim=-1)
        x = x.to(torch.float32)
        scale = part["normaliser"]
        if scale is None:
            return x
        own = slice(scale["offset"], scale["offset"] + part["length"])
        mean, inverse_std = self.arrays[scale["mean"]][own], self.arrays[scale["inverse_std"]][own]
        return ((x - mean) * inverse_std).clamp(-scale["clip"], scale["clip"])

    def _picture(self, part: dict[str, Any], x: Tensor) -> Tensor:
        """An image part as [B, k C, H, W] bytes; the network scales them."""
        x = x.to(torch.uint8).reshape(x.shape[0], self.frames, *part["shape"])
        if part["channels"] == "last":
            x = x.movedim(-1, -3)
        return x.reshape(x.shape[0], *part["tensor_shape"])


def _one_hot(part: dict[str, Any], x: Tensor) -> Iterator[Tensor]:
    """[B, k, n] for each category. A value outside its space becomes the nearest one, as in actors."""
    for index, (n, start) in enumerate(zip(part["n"], part["start"], strict=True)):
        place = (x[..., index : index + 1].to(torch.int64) - start).clamp(0, n - 1)
        yield (place == torch.arange(n)).to(torch.float32)


class GreedyActions(nn.Module):
    """Maps logits and means [B, outputs] to the parts of the greedy action, as `env.step` takes them."""

    def __init__(self, heads: list[dict[str, Any]]) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """The action part [B, *shape] of each head."""
        return tuple(
            self._act(head, outputs[:, head["offset"] : head["offset"] + head["length"]])
            for head in self.heads
        )

    def _act(self, head: dict[str, Any], x: Tensor) -> Tensor:
        if head["kind"] == "categorical":
            ends = itertools.pairwise(itertools.accumulate(head["n"], initial=0))
            best = [x[:, first:last].argmax(dim=-1) for first, last in ends]
            action = torch.stack(best, dim=-1) + torch.tensor(head["start"])
        else:
            action = torch.minimum(
                torch.maximum(x.double(), _bounds(head["low"], -np.inf)), _bounds(head["high"], np.inf)
            )
        return action.to(torch_type(head["dtype"])).reshape(x.shape[0], *head["shape"])


def _bounds(values: list[float | None], unbounded: float) -> Tensor:
    return torch.tensor([unbounded if value is None else value for value in values], dtype=torch.float64)
