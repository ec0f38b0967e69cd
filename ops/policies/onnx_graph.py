"""A policy as an ONNX graph, by torch's exporter. Needs the extra `onnx`.

The graph is what an actor computes, normaliser and action mask included: from numbers and bytes to
logits and means, for any number of rows. Frame stacking and the choice of an action stay outside.
"""

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.networks import Inputs, InputSizes, Sequences
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN, Weights
from dppo_redis.service.plugins import first_line
from dppo_redis.spaces.features import features, images, mask
from dppo_redis.spaces.normaliser import CLIP
from dppo_redis.spaces.observations import Array, FloatArray

_NEEDED = ("onnx", "onnxscript")
_ROWS = 2  # of the example that the exporter traces; one row would be taken for a constant


def is_installed() -> bool:
    """Whether the extra is there."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


def feed(spec: Spec, rows: Array, memory: FloatArray) -> dict[str, Array]:
    """The graph's inputs for rows [B, (k,) ...] of observations and the memory [B, S] before them."""
    observation, frames = spec.observation, spec.frame_stack
    inputs: dict[str, Array] = {}
    if observation.size:
        inputs["vector"] = features(observation, rows, frames)
    for index, image in enumerate(images(observation, rows, frames)):
        inputs[f"image_{index}"] = image
    allowed = mask(observation, rows, frames)
    if allowed is not None:
        inputs["mask"] = allowed
    if spec.network.state_size:
        inputs["memory"] = memory
    return inputs


class PolicyGraph(nn.Module):
    """The tensors of `feed`, in its order, to logits and means [B, outputs] and the memory after them."""

    def __init__(self, weights: Weights, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.model = ActorCritic(spec).eval()
        self.model.load_acting_arrays(weights.network_arrays())
        self.names = list(example(spec))
        self.mean, self.inverse_std = (
            torch.from_numpy(weights.arrays[name].copy()) if spec.normalise_observations else torch.empty(0)
            for name in (NORMALISER_MEAN, NORMALISER_INVERSE_STD)
        )

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """What `ActingPolicy.step` answers."""
        given = dict(zip(self.names, tensors, strict=True))
        pictures = tuple(x for name, x in given.items() if name.startswith("image_"))
        vector = (
            self._normalise(given["vector"])
            if "vector" in given
            else tensors[0].new_zeros((len(tensors[0]), 0), dtype=torch.float32)
        )
        inputs = Inputs(vector, pictures, given.get("mask"))
        if self.model.memory is None:
            return (self.model.outputs(inputs),)
        none = torch.zeros((1, vector.shape[0]), dtype=torch.bool)
        inputs = inputs.with_sequences(Sequences(none, given["memory"]))
        after = self.model.states(inputs)[0]
        # The first part of the state is the layer's output.
        outputs: Tensor = self.model.policy(after[:, : self.model.memory.size])
        return self.model.masked(outputs, inputs.mask), after

    def _normalise(self, vector: Tensor) -> Tensor:
        observation, frames = self.spec.observation, self.spec.frame_stack
        if not self.spec.normalise_observations:
            return vector
        rows = vector.reshape(-1, frames, observation.size)
        known = rows[..., : observation.moments]
        known = ((known - self.mean) * self.inverse_std).clamp(-CLIP, CLIP)
        return torch.cat((known, rows[..., observation.moments :]), dim=-1).reshape(vector.shape)


def example(spec: Spec) -> dict[str, Tensor]:
    """Tensors of the shapes and types that `feed` gives."""
    sizes = InputSizes.of(spec.observation, spec.frame_stack)
    tensors: dict[str, Tensor] = {}
    if sizes.features:
        tensors["vector"] = torch.zeros(_ROWS, sizes.features)
    for index, shape in enumerate(sizes.images):
        tensors[f"image_{index}"] = torch.zeros((_ROWS, *shape), dtype=torch.uint8)
    if spec.observation.masked:
        tensors["mask"] = torch.ones((_ROWS, spec.action.choices), dtype=torch.bool)
    if spec.network.state_size:
        tensors["memory"] = torch.zeros(_ROWS, spec.network.state_size)
    return tensors


def write_graph(file: Path, weights: Weights, spec: Spec) -> dict[str, Any]:
    """Write the graph; returns its entry in the export's description.

    Raises:
        ConfigurationError: the exporter cannot express a network of the user's own.
    """
    tensors = example(spec)
    outputs = ["outputs", "memory_after"] if spec.network.state_size else ["outputs"]
    for talkative in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(talkative).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                PolicyGraph(weights, spec),
                (list(tensors.values()),),
                dynamo=True,
                dynamic_shapes=([{0: torch.export.Dim.DYNAMIC}] * len(tensors),),
                input_names=list(tensors),
                output_names=outputs,
                verbose=False,
            )
            assert program is not None
            program.save(str(file))
    except Exception as error:  # a network of the user's: anything may come out of it
        raise ConfigurationError(
            f"the policy cannot be written as ONNX: {type(error).__name__}: {first_line(error)}; "
            "pass --onnx no for an export without"
        ) from error
    return {
        "inputs": {
            name: {"shape": ["batch", *x.shape[1:]], "dtype": _dtype(x)} for name, x in tensors.items()
        },
        "outputs": outputs,
        "normalises": spec.normalise_observations,
    }


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
