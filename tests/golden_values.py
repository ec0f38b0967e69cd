"""What the files in tests/golden hold; every number is one that floats hold exactly.

`python -m tests.golden_values` writes those of a new wire schema, and only those that are missing.
"""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import WIRE_SCHEMA
from dppo_redis.protocol.weights import Weights
from dppo_redis.protocol.wire import encode_rollout, encode_weights
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from dppo_redis.spaces.observations import Array
from tests.factories import GOLDEN, make_spec

_COUNT = np.arange(6, dtype=np.float32).reshape(2, 3)
_PLAIN = make_spec(rollout_steps=2)
_OF_FIELDS = make_spec(
    rollout_steps=2,
    observation=describe_observations(
        Dict(
            {
                "zoom": Box(-10, 10, (2,), np.float32),
                "camera": Box(0, 255, (2, 2), np.uint8),
                "arm": Tuple((Discrete(3),)),
                "flags": MultiBinary(2),
            }
        )
    ),
    action=describe_actions(Tuple((MultiDiscrete([2, 3]), Box(-1, 1, (1,))))),
    network=NetworkConfig(hidden=(2,), memory="gru", memory_size=2),
    frame_stack=2,
)


def _plain_rollout() -> Rollout:
    """Two steps of three environments."""
    flags = {name: np.zeros((2, 3), np.bool_) for name in ("terminated", "truncated", "dummy")}
    flags["terminated"][0, 1] = flags["truncated"][1, 2] = flags["dummy"][1, 1] = True
    return Rollout(
        observations=np.stack([_COUNT, -_COUNT / 4], axis=-1),
        actions=np.array([[0, 1, 0], [1, 0, 1]]),
        log_probs=(-_COUNT / 8).astype(np.float32),
        rewards=_COUNT - 2.5,
        terminated=flags["terminated"],
        truncated=flags["truncated"],
        valid=~flags["dummy"],
        final_observations=np.array([[100, 0.5], [200, -0.5]], np.float32),
        last_observations=np.array([[7, 0.25], [8, 0.5], [9, 0.75]], np.float32),
        frames_before=np.empty((3, 0, 2), np.float32),
        memory=np.empty((3, 0), np.float32),
        discounted_returns=np.array([0.5, -0.25, 1.125]),
        episode_returns=np.array([-1.5, 2.5], np.float32),
        episode_lengths=np.array([1, 2], np.int32),
    )


def _rollout_of_fields() -> Rollout:
    """The same with observations and actions of several fields, two frames and a memory."""
    plain = vars(_plain_rollout())
    actions = np.empty((2, 3), _OF_FIELDS.action.wire_dtype)
    actions["categories"] = np.stack([plain["actions"], _COUNT % 3], axis=-1)
    actions["values"] = _COUNT[..., None] / 2
    changes = {
        "observations": _rows(_COUNT),
        "actions": actions,
        "final_observations": _rows(np.array([6, 7])),
        "last_observations": _rows(np.array([8, 9, 10])),
        "frames_before": _rows(np.array([[11], [12], [13]])),
        "memory": _COUNT.reshape(3, 2) / 16,
    }
    return Rollout(**{**plain, **changes})


def _rows(count: Array) -> Array:
    """A row for each number."""
    rows = np.empty(count.shape, _OF_FIELDS.observation.row_dtype)
    rows["zoom"] = np.stack([count, -count / 4], axis=-1)
    rows["camera"] = 10 * count[..., None, None] + np.arange(4).reshape(2, 2)
    rows["arm.0"] = (count % 3)[..., None]
    rows["flags"] = np.stack([count % 2, (count + 1) % 2], axis=-1)
    return rows


def _weights() -> Weights:
    """A policy of one hidden layer of two, for two observations and two actions."""
    shapes = {
        "policy.0.weight": (2, 2),
        "policy.0.bias": (2,),
        "policy.2.weight": (2, 2),
        "policy.2.bias": (2,),
    }
    arrays = {
        name: ((np.arange(np.prod(shape)) - 1) / 4).astype(np.float32).reshape(shape)
        for name, shape in shapes.items()
    }
    return Weights(
        epoch=3,
        version=12,
        update=11,
        trained_steps=22528,
        settled_steps=24576,
        spec="0123456789abcdef",
        arrays=arrays,
    )


GOLDEN_ROLLOUTS = {
    "rollout": (_PLAIN, _plain_rollout()),
    "rollout_of_fields": (_OF_FIELDS, _rollout_of_fields()),
}
GOLDEN_WEIGHTS = _weights()


def golden_payloads() -> dict[str, bytes]:
    """The bytes of each file, by its name."""
    rollouts = {
        f"{name}_schema{WIRE_SCHEMA}.msgpack": encode_rollout(rollout)
        for name, (_, rollout) in GOLDEN_ROLLOUTS.items()
    }
    return {**rollouts, f"weights_schema{WIRE_SCHEMA}.msgpack": encode_weights(GOLDEN_WEIGHTS)}


if __name__ == "__main__":
    for name, payload in golden_payloads().items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(payload)
