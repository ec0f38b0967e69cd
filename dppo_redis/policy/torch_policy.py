"""The network of a published policy in torch: with images, a memory, or a network of the user's own.

Imported only by actors whose network needs it.
"""

import copy
import json
from functools import lru_cache

import torch

from dppo_redis.errors import WireError
from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.networks import Sequences, to_inputs
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.plugins import one_line
from dppo_redis.spaces.features import Normaliser
from dppo_redis.spaces.observations import Array, FloatArray

_CPU = torch.device("cpu")


class TorchNetwork:
    """The learner's network on the CPU, without gradients.

    Raises:
        WireError: reason `shape`: the weights do not fit the run's spec.
    """

    def __init__(self, weights: Weights, spec: Spec, normaliser: Normaliser | None) -> None:
        self._spec = spec
        self._normaliser = normaliser
        self._model = _new_model(spec)
        try:
            self._model.load_acting_arrays(weights.network_arrays())
        except RuntimeError as error:
            raise WireError("shape", f"weights that do not fit the spec: {one_line(error)}") from error

    @torch.inference_mode()
    def step(
        self, rows: Array, memory: FloatArray, out: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Logits and means [N, outputs] for rows [N, (k,) ...], and the memory [N, S] afterwards."""
        spec = self._spec
        inputs = to_inputs(spec.observation, rows, spec.frame_stack, self._normaliser, _CPU)
        if memory.shape[1]:
            starts = torch.zeros((1, len(memory)), dtype=torch.bool)
            inputs = inputs.with_sequences(Sequences(starts, torch.from_numpy(memory)))
        outputs, state = self._model.step(inputs)
        if out is None:
            return outputs.numpy(), state.numpy()
        out[:] = outputs.numpy()
        return out, state.numpy()


def _new_model(spec: Spec) -> ActorCritic:
    """The network of a run without initial values, because weights are loaded at once."""
    if spec.network.custom is not None:
        return copy.deepcopy(_custom_model(json.dumps(spec.to_json(), sort_keys=True)))
    with torch.device("meta"):
        return ActorCritic(spec).eval()


@lru_cache(maxsize=1)
def _custom_model(spec: str) -> ActorCritic:
    """A user's network, built once per process, because building it may take long."""
    return ActorCritic(Spec.from_json(json.loads(spec))).eval()
