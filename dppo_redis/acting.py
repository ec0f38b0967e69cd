"""Playing a published policy in numpy: what actors and the evaluator run.

For the small networks of vector tasks numpy takes a third of torch's time per step, and an actor
that never imports torch starts in a fraction of a second with a fraction of the memory. That both
give the same log-probabilities is a test (largest |ratio - 1| below 1e-4).
"""

import itertools
import math
from typing import cast

import numpy as np
from numpy.random import Generator

from dppo_redis.errors import WireError
from dppo_redis.normaliser import normalise
from dppo_redis.spaces import Array, BoxSpec, FloatArray
from dppo_redis.spec import Spec
from dppo_redis.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN, Weights


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
        self.relu = spec.activation == "relu"
        self.layers = _read_layers(weights, spec)
        self.normaliser = _read_normaliser(weights, spec) if spec.normalise_observations else None
        self.std = np.exp(_array(weights, "log_std", (spec.action.outputs,))) if self.continuous else None

    @property
    def continuous(self) -> bool:
        return isinstance(self.action, BoxSpec)

    def outputs(self, observations: FloatArray) -> FloatArray:
        """Logits or means [N, outputs] for observations [N, O]."""
        x = observations if self.normaliser is None else normalise(observations, *self.normaliser)
        for matrix, bias in self.layers[:-1]:
            x = x @ matrix
            x += bias
            x = np.maximum(x, 0, out=x) if self.relu else np.tanh(x, out=x)
        matrix, bias = self.layers[-1]
        x = x @ matrix
        x += bias
        return x

    def greedy(self, observations: FloatArray) -> Array:
        """The most likely action of each row, as it is on the wire."""
        outputs = self.outputs(observations)
        return outputs if self.continuous else cast(Array, outputs.argmax(axis=-1))

    def noise(self, generator: Generator, steps: int, count: int) -> FloatArray:
        """[T, N, outputs], all the randomness of one rollout drawn at once: normal or Gumbel."""
        shape = (steps, count, self.action.outputs)
        if self.continuous:
            return generator.standard_normal(shape, dtype=np.float32)
        exponential = generator.standard_exponential(shape, dtype=np.float32)
        return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))

    def sample(self, outputs: FloatArray, noise: FloatArray) -> Array:
        """Actions for one step. A category is drawn as argmax(logits + Gumbel noise)."""
        if self.std is not None:
            return outputs + self.std * noise
        return cast(Array, (outputs + noise).argmax(axis=-1))

    def log_probs(self, outputs: FloatArray, actions: Array) -> FloatArray:
        """Log-probabilities [T, N] of a whole rollout's actions, from outputs [T, N, outputs]."""
        if self.std is not None:
            z = (actions - outputs) / self.std
            constant = np.log(self.std).sum() + 0.5 * len(self.std) * math.log(2 * math.pi)
            return cast(FloatArray, (-0.5 * np.square(z).sum(-1) - constant).astype(np.float32))
        shifted = outputs - outputs.max(axis=-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return cast(FloatArray, np.take_along_axis(log_p, actions[..., None], axis=-1)[..., 0])


def _read_layers(weights: Weights, spec: Spec) -> list[tuple[FloatArray, FloatArray]]:
    """(matrix [in, out], bias [out]) of each layer, in torch's names `policy.0`, `policy.2`, ..."""
    widths = (spec.observation.size, *spec.hidden, spec.action.outputs)
    layers = []
    for index, (width_in, width_out) in enumerate(itertools.pairwise(widths)):
        matrix = _array(weights, f"policy.{2 * index}.weight", (width_out, width_in))
        bias = _array(weights, f"policy.{2 * index}.bias", (width_out,))
        layers.append((np.ascontiguousarray(matrix.T), bias.copy()))
    return layers


def _read_normaliser(weights: Weights, spec: Spec) -> tuple[FloatArray, FloatArray]:
    """(mean, inverse standard deviation), each [O]."""
    shape = (spec.observation.size,)
    return _array(weights, NORMALISER_MEAN, shape), _array(weights, NORMALISER_INVERSE_STD, shape)


def _array(weights: Weights, name: str, shape: tuple[int, ...]) -> FloatArray:
    array = weights.arrays.get(name)
    if array is None or array.shape != shape:
        found = None if array is None else array.shape
        raise WireError("shape", f"weights {name} are {found}, the spec wants {shape}")
    return array
