"""Describes a network's inputs, arrays and outputs as data: the `layout` of an export's description. Pure.

A reader of an export needs nothing else. The layout says where each input number stands, how it is made from
an observation, which arrays form the layers, and how the outputs become an action. The order of a list is the
order of the network's inputs or outputs.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN
from dppo_redis.spaces.actions import BoxSpec, CompositeSpec, DiscreteSpec, MultiDiscreteSpec, Part
from dppo_redis.spaces.environment_spaces import with_shapes
from dppo_redis.spaces.features import FORBIDDEN, in_order
from dppo_redis.spaces.image_layers import encoder_plan
from dppo_redis.spaces.normaliser import CLIP
from dppo_redis.spaces.observations import Array, Field

Json = dict[str, Any]
_ENCODINGS = {"vector": "identity", "binary": "flags", "categories": "one-hot"}
_MASK_KIND = "mask"


def layout_of(spec: Spec) -> Json:
    """The layout of a policy's inputs, arrays and outputs, as plain values.

    * `input`: the parts of an observation. `path` leads to a part in the environment's observation, `tensor`
      is the input of the network that it goes to; `offset` and `length` say where it stands there (C order).
    * `frame_stack`: the number of observations that are read side by side, the oldest first.
    * `input_width`: numbers in the tensor `vector`, all frames together.
    * `mask`: flags of allowed choices; the logits of all others become `forbidden`.
    * `memory`: the recurrent state, which is carried from step to step and is zero at the start of an
    episode.
    * `network`: its arrays, layer by layer.
    * `output`: the heads; `path` leads to a part of the environment's action.
    """
    masks = [field for field in spec.observation.fields if field.kind == _MASK_KIND]
    network = spec.network
    memory = {"kind": network.memory, "size": network.state_size, "initial": 0.0}
    return {
        "input": [*_numbers(spec), *_images(spec)],
        "frame_stack": spec.frame_stack,
        "input_width": spec.frame_stack * spec.observation.size,
        "mask": {**_place(masks[0]), "length": math.prod(masks[0].shape), "forbidden": FORBIDDEN}
        if masks
        else None,
        "memory": memory if network.state_size else None,
        "network": _network(spec),
        "output": _heads(spec),
    }


def with_shapes_of(spec: Spec, layout: Json) -> Spec:
    """`spec` with the environment's own axes, which the layout holds and the JSON of a spec does not.

    Raises:
        ValueError, KeyError, TypeError: the layout names other parts, or shapes of another size.
    """
    parts = [*layout["input"], *([layout["mask"]] if layout["mask"] else [])]
    shapes = {part["name"]: part["shape"] for part in parts}
    found = [shapes[field.name] for field in spec.observation.fields]
    return replace(spec, observation=with_shapes(spec.observation, found))


def check_layout(layout: Json, spec: Spec, arrays: Mapping[str, Array]) -> None:
    """Check that a layout covers all inputs of the network, and that it is the layout of `spec`.

    `arrays` are the network's arrays by name. Only the weight [outputs, inputs] of the first layer is used.

    Raises:
        ValueError: the layout is another one; the message names the place.
    """
    width = 0
    for part in layout["input"]:
        if part["tensor"] != "vector":
            continue
        if part["offset"] != width:
            raise ValueError(
                f"layout.input: {part['name']} begins at {part['offset']}, the parts before it end at {width}"
            )
        width += part["length"]
    width *= layout["frame_stack"]
    read = _width_read(spec, arrays)
    if not width == layout["input_width"] == read:
        raise ValueError(
            f"layout.input adds up to {width} numbers, layout.input_width is {layout['input_width']}, "
            f"the network reads {read}"
        )
    expected = json.loads(json.dumps(layout_of(spec)))
    for name in expected.keys() | layout.keys():
        if json.dumps(layout.get(name), sort_keys=True) != json.dumps(expected.get(name), sort_keys=True):
            raise ValueError(f"layout.{name} is not the one that follows from the spec")


def _width_read(spec: Spec, arrays: Mapping[str, Array]) -> int:
    """The number of inputs of the first layer over the tensor `vector`, from its array if there is one."""
    layers = _network(spec).get("vector") or _network(spec).get("layers")
    if layers is None or not spec.observation.size:
        return spec.frame_stack * spec.observation.size
    return int(arrays[layers[0]["weight"]].shape[1])


def _place(field: Field) -> Json:
    return {
        "name": field.name,
        "path": list(field.path),
        "shape": list(field.environment_shape),
        "dtype": field.dtype,
    }


def _numbers(spec: Spec) -> Iterator[Json]:
    """The parts of the tensor `vector`."""
    offset = 0
    for field in in_order(spec.observation):
        normalised = spec.normalise_observations and field.kind == "vector"
        part = {
            **_place(field),
            "tensor": "vector",
            "offset": offset,
            "length": field.features,
            "encoding": _ENCODINGS[field.kind],
            "normaliser": _normaliser(offset) if normalised else None,
        }
        if field.kind == "categories":
            part |= {"n": list(field.sizes), "start": list(field.starts)}
        yield part
        offset += field.features


def _normaliser(offset: int) -> Json:
    """(x - mean) * inverse_std, limited to [-clip, clip]; both arrays are used from `offset` on."""
    return {
        "mean": NORMALISER_MEAN,
        "inverse_std": NORMALISER_INVERSE_STD,
        "offset": offset,
        "clip": CLIP,
    }


def _images(spec: Spec) -> Iterator[Json]:
    """The images, each a tensor [channels, height, width]; stacked frames are further channels."""
    for index, field in enumerate(spec.observation.images):
        channels, height, width = field.image_shape
        yield {
            **_place(field),
            "tensor": f"image_{index}",
            "offset": 0,
            "length": math.prod(field.shape),
            "encoding": "image",
            "channels": None if len(field.shape) == 2 else "first" if field.channels_first else "last",
            "divide_by": field.high,
            "tensor_shape": [spec.frame_stack * channels, height, width],
            "normaliser": None,
        }


def _network(spec: Spec) -> Json:
    """The layers, each x @ weight.T + bias and an activation, as in torch.nn.Linear and torch.nn.Conv2d."""
    network, outputs = spec.network, spec.action.outputs
    if network.custom is not None:
        return {"kind": "custom", "class": network.custom, "arrays": "custom."}
    width = spec.frame_stack * spec.observation.size
    hidden = [network.activation] * len(network.hidden)
    if not spec.observation.images and network.memory == "none":
        widths = (width, *network.hidden, outputs)
        return {"kind": "mlp", "layers": _linear("policy", widths, [*hidden, None])}
    encoders = [_encoder(spec, index, field) for index, field in enumerate(spec.observation.images)]
    features = sum(encoder["layers"][-1]["outputs"] for encoder in encoders)
    vector, cell = None, None
    if width:
        vector = _linear("trunk.vector", (width, *network.hidden), hidden)
        features += network.hidden[-1]
    if network.memory != "none":
        cell = {"kind": network.memory, "arrays": "memory.cell.", "inputs": features}
        cell["outputs"] = features = network.memory_size
    return {
        "kind": "trunk",
        "encoders": encoders,
        "vector": vector,
        "cell": cell,
        "layers": _linear("policy", (features, outputs), [None]),
    }


def _linear(name: str, widths: tuple[int, ...], activations: Sequence[str | None]) -> list[Json]:
    """Layers under torch's names NAME.0, NAME.2 and so on, because torch numbers activations, too."""
    return [
        {
            "kind": "linear",
            "weight": f"{name}.{2 * index}.weight",
            "bias": f"{name}.{2 * index}.bias",
            "inputs": inputs,
            "outputs": outputs,
            "activation": activation,
        }
        for index, ((inputs, outputs), activation) in enumerate(
            zip(itertools.pairwise(widths), activations, strict=True)
        )
    ]


def _encoder(spec: Spec, index: int, field: Field) -> Json:
    """The layers that turn bytes, divided by `divide_by`, into features."""
    channels, height, width = field.image_shape
    channels *= spec.frame_stack
    plan, features = encoder_plan(height, width)
    name = f"trunk.encoders.{index}.layers"
    layers: list[Json] = []
    for number, (outputs, kernel, stride, padding) in enumerate(plan):
        layers.append(
            {
                "kind": "convolution",
                "weight": f"{name}.{2 * number}.weight",
                "bias": f"{name}.{2 * number}.bias",
                "inputs": channels,
                "outputs": outputs,
                "kernel": kernel,
                "stride": stride,
                "padding": padding,
                "activation": "relu",
            }
        )
        channels = outputs
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    (last,) = _linear("", (channels * height * width, features), ["relu"])
    place = f"{name}.{2 * len(plan) + 1}"  # a layer that flattens stands between
    layers.append({**last, "weight": f"{place}.weight", "bias": f"{place}.bias"})
    return {"tensor": f"image_{index}", "layers": layers}


def _heads(spec: Spec) -> list[Json]:
    """The parts of an action in the order of the outputs: all logits, then all means."""
    action = spec.action
    choices, values, heads = 0, 0, []
    for path, part in _parts(action.space, ()):
        head: Json = {"name": ".".join(map(str, path)) or "action", "path": list(path)}
        if isinstance(part, BoxSpec):
            head |= _gaussian(part, action.choices + values, values)
            values += part.dimensions
        else:
            head |= _categorical(part, choices)
            choices += sum(part.categories)
        heads.append(head)
    return sorted(heads, key=lambda head: head["offset"])


def _parts(part: Part, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(part, CompositeSpec):
        names = range(len(part.parts)) if part.names is None else part.names
        for name, one in zip(names, part.parts, strict=True):
            yield from _parts(one, (*path, name))
    else:
        yield path, part


def _categorical(part: DiscreteSpec | MultiDiscreteSpec, offset: int) -> Json:
    """Categories as groups of n logits; a group's greedy choice is start + the index of its largest logit."""
    if isinstance(part, DiscreteSpec):
        starts, shape, dtype = [part.start], [], "int64"
    else:
        starts, shape, dtype = list(part.starts), list(part.shape), part.dtype
    return {
        "kind": "categorical",
        "offset": offset,
        "length": sum(part.categories),
        "n": list(part.categories),
        "start": starts,
        "shape": shape,
        "dtype": dtype,
    }


def _gaussian(part: BoxSpec, offset: int, first: int) -> Json:
    """Real numbers; the greedy action is the mean, limited to [low, high]; null means no bound."""
    return {
        "kind": "gaussian",
        "offset": offset,
        "length": part.dimensions,
        "low": [x if math.isfinite(x) else None for x in part.low],
        "high": [x if math.isfinite(x) else None for x in part.high],
        "log_std": {"array": "log_std", "offset": first},
        "shape": list(part.shape),
        "dtype": part.dtype,
    }
