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

    def step(self, rows: Array, memory: FloatArray, out: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for rows [N, (k,) ...], and the memory [N, S] afterwards.

        Logits and means are written into `out` if it is given, a contiguous array.
        """
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
        self._is_one_choice = spec.action.choices > 0 and not spec.action.row_shape and not dimensions
        self.std: FloatArray | None = None
        if dimensions:
            self.std = np.exp(_array(weights, "log_std", (dimensions,)))

    def begin(self, count: int) -> FloatArray:
        """The memory [N, S] at the start of an episode; S is 0 without a recurrent layer."""
        return np.zeros((count, self.spec.network.state_size), np.float32)

    def step(
        self, rows: Array, memory: FloatArray, out: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for the observations of one step, and the memory afterwards.

        `rows` are [N, ...], with frame stacking [N, k, ...]; forbidden choices have logits of -1e8. Logits
        and means are written into `out` if it is given, a contiguous array.
        """
        return self._network.step(rows, memory, out)

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
            np.maximum(exponential, np.finfo(np.float32).tiny, out=exponential)
            np.log(exponential, out=exponential)
            parts.append(np.negative(exponential, out=exponential))
        if dimensions:
            parts.append(generator.standard_normal((steps, count, dimensions), dtype=np.float32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def sample(self, outputs: FloatArray, noise: FloatArray, out: Array | None = None) -> Array:
        """Actions [N, *row_shape] of one step, from outputs and noise [N, outputs].

        A category is drawn as argmax(logits + Gumbel noise), a number as mean + std * normal noise. The
        actions are written into `out` if it is given.
        """
        if self._is_one_choice:
            return cast(Array, (outputs + noise).argmax(-1, out))
        choices = self.action.choices
        if self.std is None:
            actions = choose(self.action, outputs + noise, noise[..., :0])
        else:
            values = cast(FloatArray, outputs[..., choices:] + self.std * noise[..., choices:])
            actions = choose(self.action, outputs[..., :choices] + noise[..., :choices], values)
        if out is None:
            return actions
        out[...] = actions
        return out

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
    """A plain MLP over vectors; for one thread at a time."""

    def __init__(self, weights: Weights, spec: Spec, normaliser: Normaliser | None) -> None:
        self._spec = spec
        self._normaliser = normaliser
        self._activate = _relu if spec.network.activation == "relu" else np.tanh
        self._matrices, self._biases = zip(*_read_layers(weights, spec), strict=True)
        self._is_masked = spec.observation.masked
        self._reads_rows = spec.observation.is_floats and spec.frame_stack == 1 and normaliser is None
        self._shape: tuple[int, ...] = ()
        self._hidden: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        self._head: FloatArray = self._biases[-1]

    def step(
        self, rows: Array, memory: FloatArray, out: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for rows [N, (k,) ...]; there is no memory."""
        spec = self._spec
        x = rows
        if not self._reads_rows:
            x = features(spec.observation, rows, spec.frame_stack, self._normaliser)
        if x.shape != self._shape:
            self._make_room(x.shape)
        activate = self._activate
        for matrix, bias, hidden in self._hidden:
            x.dot(matrix, hidden)  # half a microsecond less than @
            np.add(hidden, bias, hidden)
            x = activate(hidden, hidden)
        x = x.dot(self._matrices[-1], out)
        np.add(x, self._head, x)
        if self._is_masked:
            allowed = mask(spec.observation, rows, spec.frame_stack)
            assert allowed is not None
            np.copyto(x[..., : spec.action.choices], np.float32(FORBIDDEN), where=~allowed)
        return x, memory

    def _make_room(self, shape: tuple[int, ...]) -> None:
        """Allocate for features of this shape; each row has a copy of the biases: equal shapes add faster."""
        biases = [np.broadcast_to(bias, (*shape[:-1], len(bias))).copy() for bias in self._biases]
        self._hidden = [
            (matrix, bias, np.empty_like(bias))
            for matrix, bias in zip(self._matrices[:-1], biases[:-1], strict=True)
        ]
        self._head, self._shape = biases[-1], shape


def _relu(x: FloatArray, out: FloatArray) -> FloatArray:
    return np.maximum(x, 0, out=out)


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
