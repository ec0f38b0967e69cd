"""The parts of networks in torch, and the inputs that networks read.

Weights start orthogonal, with gain sqrt 2 for hidden layers, 0.01 for the policy head and 1 for the value
head. arXiv:2006.05990 finds that the small gain of the policy head matters most.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from dppo_redis.spaces.features import Normaliser, features, images, mask
from dppo_redis.spaces.image_layers import encoder_plan
from dppo_redis.spaces.observations import Array, Field, ObservationSpec

Activation = Literal["tanh", "relu"]
_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


@dataclass(frozen=True)
class Sequences:
    """The order of rows for a network with a memory: T steps of C environments; row t C + c is (t, c)."""

    starts: Tensor  # [T, C] bool, rows that begin an episode
    state: Tensor  # [C, S], the memory before the first row


@dataclass(frozen=True)
class Inputs:
    """The inputs of a network for B rows."""

    vector: Tensor  # [B, F] float32: vectors (normalised, if the run does), flags, one-hot categories
    images: tuple[Tensor, ...]  # each [B, C, H, W] uint8
    mask: Tensor | None  # [B, choices] bool, allowed ones
    sequences: Sequences | None = None

    def __len__(self) -> int:
        return len(self.vector)

    def take(self, index: Tensor | slice) -> "Inputs":
        """The rows at `index`, a tensor [b] of row numbers or a slice; a slice gives views."""
        return Inputs(
            self.vector[index],
            tuple(image[index] for image in self.images),
            None if self.mask is None else self.mask[index],
        )

    def with_sequences(self, sequences: Sequences) -> "Inputs":
        """These rows with their order for a memory."""
        return replace(self, sequences=sequences)


@dataclass(frozen=True)
class InputSizes:
    """The shapes of a network's inputs, without the axis of the rows."""

    features: int
    images: tuple[tuple[int, int, int], ...]  # (C, H, W)
    highs: tuple[float, ...]  # for each image: the byte that becomes 1.0
    choices: int = 0  # flags of the action mask; 0 if the environment has none

    @staticmethod
    def of(observation: ObservationSpec, frames: int) -> "InputSizes":
        """The sizes for rows of `observation`, with the last `frames` of them side by side."""

        def stacked(field: Field) -> tuple[int, int, int]:
            channels, height, width = field.image_shape
            return frames * channels, height, width

        fields = observation.images
        return InputSizes(
            features=frames * observation.size,
            images=tuple(map(stacked, fields)),
            highs=tuple(field.high for field in fields),
            choices=sum(math.prod(field.shape) for field in observation.fields if field.kind == "mask"),
        )


def to_inputs(
    observation: ObservationSpec,
    rows: Array,
    frames: int,
    normaliser: Normaliser | None,
    device: torch.device,
) -> Inputs:
    """A network's inputs from rows [B, ...] of observations, or [B, k, ...] of stacked frames."""

    def to_device(array: Array) -> Tensor:
        # Torch aligns its own memory alike in every process. The last bits of a product depend on that.
        return torch.tensor(array, device=device)

    allowed = mask(observation, rows, frames)
    return Inputs(
        to_device(features(observation, rows, frames, normaliser)),
        tuple(to_device(image) for image in images(observation, rows, frames)),
        None if allowed is None else to_device(allowed),
    )


def mlp(
    inputs: int, hidden: tuple[int, ...], outputs: int, activation: Activation, head_gain: float
) -> nn.Sequential:
    """Hidden layers and a linear head."""
    width = hidden[-1] if hidden else inputs
    return nn.Sequential(*hidden_layers(inputs, hidden, activation), linear(width, outputs, head_gain))


def hidden_layers(inputs: int, hidden: tuple[int, ...], activation: Activation) -> list[nn.Module]:
    """Linear layers, each followed by its non-linearity."""
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise((inputs, *hidden)):
        layers.append(linear(width_in, width_out, math.sqrt(2)))
        layers.append(nn.Tanh() if activation == "tanh" else nn.ReLU())
    return layers


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A layer with orthogonal weights and no bias yet."""
    return _initialised(nn.Linear(inputs, outputs), gain)


def _initialised(layer: _Layer, gain: float) -> _Layer:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class ImageEncoder(nn.Module):
    """Turns bytes [B, C, H, W] into features [B, width], with the layers of `encoder_plan`.

    No other module scales bytes to [0, 1].
    """

    def __init__(self, shape: tuple[int, int, int], high: float) -> None:
        super().__init__()
        channels, height, width = shape
        self.scale = 1.0 / high
        plan, self.width = encoder_plan(height, width)
        layers: list[nn.Module] = []
        for out, kernel, stride, padding in plan:
            layers += [
                _initialised(nn.Conv2d(channels, out, kernel, stride, padding), math.sqrt(2)),
                nn.ReLU(),
            ]
            channels = out
            height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), linear(channels * height * width, self.width, math.sqrt(2)), nn.ReLU()
        )

    def forward(self, image: Tensor) -> Tensor:
        """Features [B, width]."""
        result: Tensor = self.layers(image.float() * self.scale)
        return result


class Trunk(nn.Module):
    """The layers that policy and value share if there is an image or a memory: [B, width].

    Each image has its own encoder. The other features go through the hidden layers.
    """

    def __init__(self, sizes: InputSizes, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            ImageEncoder(shape, high) for shape, high in zip(sizes.images, sizes.highs, strict=True)
        )
        self.vector = (
            nn.Sequential(*hidden_layers(sizes.features, hidden, activation)) if sizes.features else None
        )
        widths = [encoder.width for encoder in self.encoders if isinstance(encoder, ImageEncoder)]
        self.width = sum(widths) + (hidden[-1] if sizes.features else 0)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features [B, width] that policy and value head share."""
        parts = [encoder(image) for encoder, image in zip(self.encoders, inputs.images, strict=True)]
        if self.vector is not None:
            parts.append(self.vector(inputs.vector))
        return torch.cat(parts, dim=-1)


class Memory(nn.Module):
    """A recurrent layer over steps; its state is zero where an episode begins."""

    def __init__(self, inputs: int, size: int, kind: Literal["lstm", "gru"]) -> None:
        super().__init__()
        self.size = size
        self.lstm = kind == "lstm"
        self.cell = nn.LSTM(inputs, size) if self.lstm else nn.GRU(inputs, size)
        for name, parameter in self.cell.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, features: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Outputs [T C, size] for features [T C, F], and the state [C, S] after the last row.

        One call of the cell covers all steps up to the next one at which an episode begins in any
        environment.
        """
        steps, count = sequences.starts.shape
        x = features.reshape(steps, count, -1)
        cuts = sequences.starts.any(dim=1).nonzero().flatten().tolist()
        outputs, state = [], sequences.state
        for first, last in itertools.pairwise(sorted({0, *cuts, steps})):
            state = state * ~sequences.starts[first].unsqueeze(-1)
            output, state = self._run(x[first:last], state)
            outputs.append(output)
        return torch.cat(outputs).reshape(steps * count, self.size), state

    def states(self, features: Tensor, sequences: Sequences) -> Tensor:
        """The state after every row, [T, C, S]."""
        steps, count = sequences.starts.shape
        x = features.reshape(steps, count, -1)
        states, state = [], sequences.state
        for t in range(steps):
            _, state = self._run(x[t : t + 1], state * ~sequences.starts[t].unsqueeze(-1))
            states.append(state)
        return torch.stack(states)

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run the cell over x [L, C, F] from state [C, S], for an LSTM output and cell side by side."""
        if not self.lstm:
            output, h = self.cell(x, state.unsqueeze(0).contiguous())
            return output, h[0]
        before = tuple(part.unsqueeze(0).contiguous() for part in state.chunk(2, dim=-1))
        output, (h, c) = self.cell(x, before)
        return output, torch.cat((h[0], c[0]), dim=-1)
