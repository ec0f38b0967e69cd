"""The inputs and outputs of a policy's graph: names, types and shapes, without the batch axis."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo_redis.artefacts.layout import layout_of
from dppo_redis.protocol.spec import Spec

OUTPUTS = "outputs"
MEMORY = "memory"
MEMORY_AFTER = "memory_after"
_ACTION = "action"
_TORCH_TYPES = {  # numpy's types that ONNX and torch have under the same name
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}


@dataclass(frozen=True)
class Port:
    """One input of the graph: a part of the observation, or the memory."""

    name: str
    field: str | None  # of the observation; None for the memory
    path: tuple[str | int, ...]  # keys and indices that lead to the part
    shape: tuple[int, ...]  # without the batch axis; with frame stacking, frames come first
    dtype: str
    frames: int = 1  # number of stacked observations

    def example(self, rows: int) -> Tensor:
        """A tensor [rows, *shape] of ones."""
        return torch.ones((rows, *self.shape), dtype=_TORCH_TYPES[self.dtype])

    def to_json(self) -> dict[str, Any]:
        """The input's entry in an export's description."""
        return {
            "field": self.field,
            "path": None if self.field is None else list(self.path),
            "shape": ["batch", *self.shape],
            "dtype": self.dtype,
            "frames": self.frames,
        }


def input_ports(spec: Spec) -> list[Port]:
    """The inputs in the order of the layout: the parts of an observation, the mask, the memory.

    A part has its name in the environment, or `observation.NAME` if another port has that name.
    """
    layout = layout_of(spec)
    taken = {MEMORY, *output_ports(spec)}
    ports = []
    for part in [*layout["input"], *([layout["mask"]] if layout["mask"] else [])]:
        name = part["name"]
        while name in taken:
            name = f"observation.{name}"
        taken.add(name)
        dtype = part["dtype"] if part["dtype"] in _TORCH_TYPES else "float64"
        # Only the mask of the newest frame is used.
        count = 1 if part is layout["mask"] else spec.frame_stack
        shape = (count, *part["shape"]) if count > 1 else tuple(part["shape"])
        ports.append(Port(name, part["name"], tuple(part["path"]), shape, dtype, count))
    if layout["memory"]:
        ports.append(Port(MEMORY, None, (), (layout["memory"]["size"],), "float32"))
    return ports


def output_ports(spec: Spec) -> dict[str, dict[str, Any]]:
    """Name, shape and type of each output, in their order: logits and means, memory, the greedy action."""
    layout = layout_of(spec)
    ports: dict[str, dict[str, Any]] = {
        OUTPUTS: {"shape": ["batch", spec.action.outputs], "dtype": "float32"}
    }
    if layout["memory"]:
        ports[MEMORY_AFTER] = {"shape": ["batch", layout["memory"]["size"]], "dtype": "float32"}
    for head in layout["output"]:
        name = _ACTION if not head["path"] else f"{_ACTION}.{head['name']}"
        while name in ports:  # two parts of an action may have the same name: "a.b", and "b" inside "a"
            name = f"{name}'"
        ports[name] = {
            "path": head["path"],
            "shape": ["batch", *head["shape"]],
            "dtype": head["dtype"] if head["dtype"] in _TORCH_TYPES else "float64",
        }
    return ports


def torch_type(dtype: str) -> torch.dtype:
    """The torch type for an array's dtype; float64 for a dtype that torch does not have."""
    found: torch.dtype = _TORCH_TYPES.get(dtype, torch.float64)
    return found
