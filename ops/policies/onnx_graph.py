"""Writes a policy as an ONNX graph, with torch's exporter. Needs the extra `onnx`.

The graph's inputs are the named parts of an observation, as the environment returns them. The graph computes
an actor's outputs, with encoding, normaliser and action mask, and the greedy action. It does not choose the
frames to stack, and does not draw actions.
"""

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dppo_redis.artefacts.layout import layout_of
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.networks import Inputs, Sequences
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.plugins import first_line
from ops.policies.graph_parts import GreedyActions, ObservationEncoder
from ops.policies.graph_ports import input_ports, output_ports

_PACKAGES = ("onnx", "onnxscript")
_ROWS = 2  # of the example that the exporter traces; it would take one row for a constant


def is_installed() -> bool:
    """Whether the packages of the extra are installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


class PolicyGraph(nn.Module):
    """Maps the tensors of `input_ports` to logits and means [B, outputs], the memory, and the action."""

    def __init__(self, weights: Weights, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.model = ActorCritic(spec).eval()
        self.model.load_acting_arrays(weights.network_arrays())
        self.ports = input_ports(spec)
        self.encoder = ObservationEncoder(weights, spec)
        self.greedy = GreedyActions(layout_of(spec)["output"])

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """The results of `ActingPolicy.step`, [B, outputs] and with a memory [B, S], then the parts of the
        greedy action, [B, *shape]."""
        fields = {port.field: tensor for port, tensor in zip(self.ports, tensors, strict=True) if port.field}
        inputs = self.encoder(fields)
        if self.model.memory is None:
            outputs = self.model.outputs(inputs)
            return (outputs, *self.greedy(outputs))
        outputs, after = self._step_memory(inputs, tensors[-1])
        return (outputs, after, *self.greedy(outputs))

    def _step_memory(self, inputs: Inputs, memory: Tensor) -> tuple[Tensor, Tensor]:
        assert self.model.memory is not None
        none = torch.zeros((1, inputs.vector.shape[0]), dtype=torch.bool)
        inputs = inputs.with_sequences(Sequences(none, memory))
        after = self.model.states(inputs)[0]
        # The first part of the state is the layer's output.
        outputs: Tensor = self.model.policy(after[:, : self.model.memory.size])
        return self.model.masked(outputs, inputs.mask), after


def write_graph(file: Path, weights: Weights, spec: Spec) -> dict[str, Any]:
    """Write the graph; returns its entry in the export's description.

    Raises:
        ConfigurationError: the exporter cannot write a custom network.
    """
    ports, outputs = input_ports(spec), output_ports(spec)
    examples = [port.example(_ROWS) for port in ports]
    for library in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                PolicyGraph(weights, spec),
                (examples,),
                dynamo=True,
                dynamic_shapes=([{0: torch.export.Dim.DYNAMIC}] * len(ports),),
                verbose=False,
            )
            assert program is not None
            name_ports(program, [port.name for port in ports], list(outputs))
            program.save(str(file))
    except Exception as error:  # the user's network may raise anything
        raise ConfigurationError(
            f"the policy cannot be written as ONNX: {type(error).__name__}: {first_line(error)}; "
            "pass --onnx no to export without a graph"
        ) from error
    return {
        "inputs": {port.name: port.to_json() for port in ports},
        "outputs": outputs,
        "normalises": spec.normalise_observations,
    }


def name_ports(program: Any, inputs: list[str], outputs: list[str]) -> None:
    """Name the graph's inputs and outputs. Inner values that have one of these names are renamed.

    Raises:
        ValueError: the graph has other inputs or outputs.
    """
    graph = program.model.graph
    for node in graph:
        for value in node.outputs:
            if value.name is not None:
                value.name = f"inside/{value.name}"
    for ports, names in ((graph.inputs, inputs), (graph.outputs, outputs)):
        for port, name in zip(ports, names, strict=True):
            port.name = name
            port.shape = type(port.shape)(["batch", *port.shape[1:]])
