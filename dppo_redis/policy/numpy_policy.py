"""The policy with which actors and the evaluator act, from one publication. Sampling uses numpy alone.

The small networks of vector tasks use numpy, too, and need a third of torch's time per step. An actor that
never imports torch starts in a fraction of a second with a fraction of the memory. A test checks that numpy
and torch give the same log-probabilities (largest |ratio - 1| below 1e-4).
"""

import itertools
import math
from typing import Protocol, cast

import numpy as np
from numpy.random import Generator

from dppo_redis.errors import WireError
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN, Weights
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.features import FORBIDDEN, Normaliser, features, mask
from dppo_redis.spaces.observations import Array, FloatArray


class Network(Protocol):
    """A policy network of one publication."""

    def step(self, rows: Array, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for rows [N, (k,) ...], and the memory [N, S] afterwards."""
        ...


class ActingPolicy:
    """One publication of weights, ready to act.

    Raises:
        WireError: reason `spec` or `shape`: the weights do not fit the run's spec.
    """

    def __init__(self, weights: Weights, spec: Spec) -> None:
        if weights.spec != spec.digest():
            raise WireError("spec", f"weights of spec {weights.spec}, this run has {spec.digest()}")
        self.weights = weights
        self.action = spec.action
        self.spec = spec
        self._network = _build_network(weights, spec)
        dimensions = spec.action.dimensions
        self.std: FloatArray | None = None
        if dimensions:
            self.std = np.exp(_array(weights, "log_std", (dimensions,)))

    def begin(self, count: int) -> FloatArray:
        """The memory [N, S] at the start of an episode; S is 0 without a recurrent layer."""
        return np.zeros((count, self.spec.network.state_size), np.float32)

    def step(self, rows: Array, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for the observations of one step, and the memory afterwards.

        `rows` are [N, ...], with frame stacking [N, k, ...]; forbidden choices have logits of -1e8.
        """
        return self._network.step(rows, memory)

    def outputs(self, rows: Array) -> FloatArray:
        """Logits and means [N, outputs] for `rows` [N, ...] that begin an episode, or without a memory."""
        return self.step(rows, self.begin(len(rows)))[0]

    def greedy(self, outputs: FloatArray) -> Array:
        """The most likely actions [N, *row_shape], as they travel, for outputs [N, outputs]."""
        return choose(self.action, outputs, outputs[..., self.action.choices :])

    def actions(self, outputs: FloatArray, sampling: Generator | None) -> Array:
        """Actions [N, *row_shape] for outputs [N, outputs]: greedy, or drawn if `sampling` is given."""
        if sampling is None:
            return self.greedy(outputs)
        return self.sample(outputs, self.noise(sampling, 1, len(outputs))[0])

    def noise(self, generator: Generator, steps: int, count: int) -> FloatArray:
        """[T, N, outputs], all the randomness of one rollout drawn at once: Gumbel, then normal."""
        choices, dimensions = self.action.choices, self.action.dimensions
        parts = []
        if choices:
            exponential = generator.standard_exponential((steps, count, choices), dtype=np.float32)
            parts.append(-np.log(np.maximum(exponential, np.finfo(np.float32).tiny)))
        if dimensions:
            parts.append(generator.standard_normal((steps, count, dimensions), dtype=np.float32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def sample(self, outputs: FloatArray, noise: FloatArray) -> Array:
        """Actions [N, *row_shape] of one step, from outputs and noise [N, outputs].

        A category is drawn as argmax(logits + Gumbel noise), a number as mean + std * normal noise.
        """
        if self.std is None:
            return choose(self.action, outputs + noise, noise[..., :0])
        choices = self.action.choices
        values = cast(FloatArray, outputs[..., choices:] + self.std * noise[..., choices:])
        return choose(self.action, outputs[..., :choices] + noise[..., :choices], values)

    def log_probs(self, outputs: FloatArray, actions: Array) -> FloatArray:
        """Log-probabilities [T, N] of a whole rollout's actions, from outputs [T, N, outputs]."""
        categories, values = self.action.split(actions)
        total = np.zeros(outputs.shape[:-1], np.float32)
        for index, logits in enumerate(_logits(self.action, outputs)):
            total += _log_probs(logits, categories[..., index])
        if self.std is not None:
            z = (values - outputs[..., self.action.choices :]) / self.std
            constant = np.log(self.std).sum() + 0.5 * len(self.std) * math.log(2 * math.pi)
            total += (-0.5 * np.square(z).sum(-1) - constant).astype(np.float32)
        return total


def choose(action: ActionSpec, scores: FloatArray, values: FloatArray) -> Array:
    """Rows of the highest score [..., choices] in each category, and of raw `values` [..., A]."""
    if not action.choices:
        return values
    if not action.row_shape and not action.dimensions:
        return cast(Array, scores.argmax(axis=-1))
    best = [part.argmax(axis=-1) for part in _logits(action, scores)]
    return action.join(np.stack(best, axis=-1), values)


def _logits(action: ActionSpec, outputs: FloatArray) -> list[FloatArray]:
    """The logits [..., n] of each category."""
    if len(action.categories) == 1:
        return [outputs[..., : action.choices]]
    ends = itertools.pairwise((*action.offsets, action.choices)) if action.choices else ()
    return [outputs[..., first:last] for first, last in ends]


def _log_probs(logits: FloatArray, chosen: Array) -> FloatArray:
    """Log-probabilities [...] of one category's choices [...] under logits [..., n].

    Computed with the rows last: sums over a short last axis would take ten times as long.
    """
    rows = np.array(logits.reshape(-1, logits.shape[-1]).T, order="C")  # a copy
    rows -= rows.max(axis=0)
    count = rows.shape[1]
    picked = rows.reshape(-1).take(chosen.reshape(-1) * count + np.arange(count))
    picked -= np.log(np.exp(rows, out=rows).sum(axis=0))
    return cast(FloatArray, picked.reshape(chosen.shape))


class NumpyNetwork:
    """A plain MLP over vectors."""

    def __init__(self, weights: Weights, spec: Spec, normaliser: Normaliser | None) -> None:
        self._spec = spec
        self._normaliser = normaliser
        self._relu = spec.network.activation == "relu"
        self._layers = _read_layers(weights, spec)

    def step(self, rows: Array, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for rows [N, (k,) ...]; there is no memory."""
        spec = self._spec
        x = features(spec.observation, rows, spec.frame_stack, self._normaliser)
        for matrix, bias in self._layers[:-1]:
            x = x.dot(matrix)  # half a microsecond less than @
            x += bias
            x = np.maximum(x, 0, out=x) if self._relu else np.tanh(x, out=x)
        matrix, bias = self._layers[-1]
        x = x.dot(matrix)
        x += bias
        allowed = mask(spec.observation, rows, spec.frame_stack)
        if allowed is not None:
            np.copyto(x[..., : spec.action.choices], np.float32(FORBIDDEN), where=~allowed)
        return x, memory


def needs_torch(spec: Spec) -> bool:
    """Whether an actor of this run must import torch."""
    return bool(spec.observation.images) or spec.network.memory != "none" or spec.network.custom is not None


def _build_network(weights: Weights, spec: Spec) -> Network:
    normaliser = _read_normaliser(weights, spec) if spec.normalise_observations else None
    if not needs_torch(spec):
        return NumpyNetwork(weights, spec, normaliser)
    from dppo_redis.policy.torch_policy import TorchNetwork  # only where the network needs it

    return TorchNetwork(weights, spec, normaliser)


def _read_layers(weights: Weights, spec: Spec) -> list[tuple[FloatArray, FloatArray]]:
    """(matrix [in, out], bias [out]) of each layer, in torch's names `policy.0`, `policy.2`, ..."""
    widths = (spec.frame_stack * spec.observation.size, *spec.network.hidden, spec.action.outputs)
    layers = []
    for index, (width_in, width_out) in enumerate(itertools.pairwise(widths)):
        matrix = _array(weights, f"policy.{2 * index}.weight", (width_out, width_in))
        bias = _array(weights, f"policy.{2 * index}.bias", (width_out,))
        layers.append((np.ascontiguousarray(matrix.T), bias.copy()))
    return layers


def _read_normaliser(weights: Weights, spec: Spec) -> Normaliser:
    shape = (spec.observation.moments,)
    return _array(weights, NORMALISER_MEAN, shape), _array(weights, NORMALISER_INVERSE_STD, shape)


def _array(weights: Weights, name: str, shape: tuple[int, ...]) -> FloatArray:
    array = weights.arrays.get(name)
    if array is None or array.shape != shape:
        found = None if array is None else array.shape
        raise WireError("shape", f"weights {name} are {found}, the spec wants {shape}")
    return array
