"""The spec of a configuration keeps its digest and its text: another one would refuse every resume."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.photographs.camera import photograph
from tests.photographs.product import spec_of

CONFIGURATIONS: dict[str, Mapping[str, Any]] = {
    "discrete": {"env_id": "CartPole-v1"},
    "lock step": {
        "env_id": "CartPole-v1",
        "lock_step": True,
        "actors": 3,
        "env_kwargs": {"sutton_barto_reward": True},
        "wrappers": ("TimeLimit(max_episode_steps=60)",),
    },
    "box": {
        "env_id": "Pendulum-v1",
        "rollout_steps": 32,
        "ppo": {"normalise_observations": True, "normalise_returns": True, "gamma": 0.9},
    },
    "open box": {
        "env_id": "tests.envs:OpenBounds-v0",
        "frame_stack": 3,
        "ppo": {"normalise_observations": True},
    },
    "image": {"env_id": "ops.bench.pixel_catch:PixelCatch-v0", "frame_stack": 2},
    "dict": {
        "env_id": "tests.envs:Named-v0",
        "frame_stack": 2,
        "ppo": {"normalise_observations": True},
        "network": {"hidden": (16,), "memory": "gru", "memory_size": 12},
    },
    "mask": {"env_id": "tests.envs:Masked-v0", "network": {"hidden": (32, 16), "activation": "relu"}},
    "mask left out": {"env_id": "tests.envs:Masked-v0", "use_action_mask": False},
    "everything": {"env_id": "tests.envs:Everything-v0", "network": {"memory": "lstm"}},
    "custom network": {"env_id": "tests.envs:Parts-v0", "network": {"custom": "tests.networks:Noisy"}},
}
DIGESTS = {
    "discrete": "264b3c806242d2f3",
    "lock step": "b26ba0ea4cedf0e1",
    "box": "515babe00da2b8d4",
    "open box": "02e42b574c27e48b",
    "image": "34f1668e624aa9dc",
    "dict": "cda4168f7f3d488f",
    "mask": "7b66d46906fe2272",
    "mask left out": "d25ac67267bb426f",
    "everything": "ba2987ab3ad6f2f4",
    "custom network": "3ca5aa64da6dd5a0",
}
DISCRETE = (
    '{"digest": "264b3c806242d2f3", "join": {"env_timeout_s": 600.0, "envs_per_actor": 8, "evaluation'
    '_episodes": 20, "evaluation_interval_s": 0.25, "evaluation_max_share": 0.05, "lock_step": null, '
    '"seed": 1, "vectorization": "auto"}, "spec": {"action": {"kind": "discrete", "n": 2, "start": 0}'
    ', "environment": {"env_id": "CartPole-v1", "env_kwargs": {}, "wrappers": []}, "frame_stack": 1, '
    '"network": {"activation": "tanh", "custom": null, "hidden": [64, 64], "memory": "none", "memory_'
    'size": 64}, "normalise_observations": false, "observation": [{"dtype": "float32", "high": 1.0, "'
    'kind": "vector", "path": [], "shape": [4], "sizes": [], "starts": []}], "return_discount": null,'
    ' "rollout_steps": 128, "wire_schema": 2}}'
)
BOX = (
    '{"digest": "515babe00da2b8d4", "join": {"env_timeout_s": 600.0, "envs_per_actor": 8, "evaluation'
    '_episodes": 20, "evaluation_interval_s": 0.25, "evaluation_max_share": 0.05, "lock_step": null, '
    '"seed": 1, "vectorization": "auto"}, "spec": {"action": {"dtype": "float32", "high": [2.0], "kin'
    'd": "box", "low": [-2.0], "shape": [1]}, "environment": {"env_id": "Pendulum-v1", "env_kwargs": '
    '{}, "wrappers": []}, "frame_stack": 1, "network": {"activation": "tanh", "custom": null, "hidden'
    '": [64, 64], "memory": "none", "memory_size": 64}, "normalise_observations": true, "observation"'
    ': [{"dtype": "float32", "high": 1.0, "kind": "vector", "path": [], "shape": [3], "sizes": [], "s'
    'tarts": []}], "return_discount": 0.9, "rollout_steps": 32, "wire_schema": 2}}'
)


def test_each_configuration_has_a_digest_here() -> None:
    assert len(CONFIGURATIONS) == len(set(DIGESTS.values())) == 10
    assert CONFIGURATIONS.keys() == DIGESTS.keys()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_digest_of_a_configuration_stays(name: str) -> None:
    assert spec_of(CONFIGURATIONS[name])[0] == DIGESTS[name]


@pytest.mark.parametrize(("name", "text"), [("discrete", DISCRETE), ("box", BOX)])
def test_the_text_of_a_spec_key_stays(name: str, text: str) -> None:
    assert spec_of(CONFIGURATIONS[name])[1] == text


def test_the_texts_of_all_ten_spec_keys_stay() -> None:
    texts = [f"{name}\n{spec_of(settings)[1]}" for name, settings in CONFIGURATIONS.items()]
    photograph("specs.txt", "\n".join(texts))
