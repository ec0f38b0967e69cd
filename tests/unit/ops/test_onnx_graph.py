"""An ONNX graph computes the policy's outputs and actions, for any number of rows."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
from gymnasium.spaces import Box, Dict

from dppo_redis.artefacts.exports import GRAPH, Export, load_export, write_export
from dppo_redis.artefacts.layout import layout_of
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.player import Player
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.features import FORBIDDEN
from dppo_redis.spaces.gymnasium_spaces import MaskSpace, describe_actions, describe_observations
from dppo_redis.spaces.observations import Array, FloatArray
from ops.commands.export import add_graph
from ops.policies.graph_ports import input_ports
from ops.policies.load_policy import LoadedPolicy
from ops.policies.onnx_graph import write_graph
from tests.documented import documented
from tests.envs.observations import Grid, Named, Parts
from tests.factories import box, discrete, make_description, make_spec, random_observations
from tests.unit.artefacts.test_exports import LSTM, MASKED, NAMED, loaded
from tests.unit.artefacts.test_layout import SPACES, assert_same_action, by_name, spec_of

GRID = describe_observations(Grid.observation_space)
EVERYTHING = describe_observations(
    Dict({"observation": Named.observation_space, "action_mask": MaskSpace(18)})
)
CASES = {
    "mask, frames and normaliser": make_spec(
        observation=MASKED, action=discrete(4), frame_stack=3, normalise_observations=True
    ),
    "frames of a picture and a mask": make_spec(
        observation=EVERYTHING, action=describe_actions(Parts.action_space), frame_stack=2
    ),
    "image alone, lstm and real actions": make_spec(observation=GRID, network=LSTM, action=box()),
}


PLAYED = {
    name: SPACES[name]
    for name in ("the same, three frames", "number to number", "wide box", "tuple of actions")
}


@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_a_graph_computes_the_outputs_of_the_policy(spec: Spec, tmp_path: Path) -> None:
    weights = loaded(spec)
    entry = write_graph(tmp_path / "policy.onnx", weights, spec)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    policy = ActingPolicy(weights, spec)
    for ports, key in ((session.get_inputs(), "inputs"), (session.get_outputs(), "outputs")):
        assert {one.name: one.shape[1:] for one in ports} == {
            name: port["shape"][1:] for name, port in entry[key].items()
        }
    for count in (1, 5):
        _compare(session, policy, count)


def _compare(session: onnxruntime.InferenceSession, policy: ActingPolicy, count: int) -> None:
    """Compare graph and policy over a few steps, each with its own memory."""
    spec = policy.spec
    rng = np.random.default_rng(2)
    lead = (count, spec.frame_stack) if spec.frame_stack > 1 else (count,)
    memory = theirs = policy.begin(count)
    for _ in range(4):
        rows = random_observations(rng, lead, spec)
        outputs, memory = policy.step(rows, memory)
        answers = session.run(None, feed(spec, rows, theirs))
        _same_actions(answers[2:] if theirs.size else answers[1:], policy, outputs)
        np.testing.assert_allclose(answers[0], outputs, rtol=1e-4, atol=_rounding(outputs))
        same = (policy.action.split(policy.greedy(x))[0].tolist() for x in (answers[0], outputs))
        assert next(same) == next(same)
        theirs = answers[1] if theirs.size else theirs


def _rounding(outputs: FloatArray) -> float:
    """The rounding error of sums whose terms are as large as the largest output."""
    return 1e-5 + 1e-6 * float(np.abs(outputs[outputs > FORBIDDEN]).max())


def _same_actions(found: list[Any], policy: ActingPolicy, outputs: FloatArray) -> None:
    """The graph's greedy actions equal the policy's, also in type and shape."""
    expected = by_name(policy.action.to_environment(policy.greedy(outputs)))
    assert len(found) == len(expected)
    names = [head["name"] for head in layout_of(policy.spec)["output"]]
    for name, part in zip(names, found, strict=True):
        assert (part.dtype, part.shape) == (expected[name].dtype, expected[name].shape)
        np.testing.assert_allclose(part, expected[name], rtol=1e-4, atol=_rounding(outputs))


def feed(spec: Spec, rows: Array, memory: FloatArray) -> dict[str, Array]:
    """The graph's inputs for rows [B, (k,) ...] of observations in wire form."""
    fields = {field.name: field for field in spec.observation.fields}
    inputs: dict[str, Array] = {}
    for port in input_ports(spec):
        if port.field is None:
            inputs[port.name] = memory
            continue
        field = fields[port.field]
        part = spec.observation.part(rows, field)
        part = part + np.asarray(field.starts) if field.starts else part
        if field.kind == "mask" and spec.frame_stack > 1:
            part = part[:, -1]
        inputs[port.name] = part.reshape(len(rows), *port.shape).astype(port.dtype)
    return inputs


@pytest.mark.parametrize(("observation", "action", "other"), PLAYED.values(), ids=PLAYED)
def test_the_documented_reader_plays_the_graph_as_the_policy_plays(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any], other: dict[str, Any], tmp_path: Path
) -> None:
    spec = spec_of(observation, action, other)
    _export(tmp_path, spec)
    _play_alike(tmp_path, observation, spec)


def test_the_documented_reader_plays_frames_of_pictures_and_a_memory(tmp_path: Path) -> None:
    network = LSTM.model_copy(update={"memory": "gru"})
    spec = make_spec(observation=NAMED, network=network, frame_stack=2, normalise_observations=True)
    _export(tmp_path, spec)
    _play_alike(tmp_path, Named.observation_space, spec)


def _export(directory: Path, spec: Spec) -> None:
    learnt, extra = LoadedPolicy("run", make_description(spec), loaded(spec)), dict[str, Any]()
    add_graph(directory, learnt, extra, wanted=True)
    write_export(directory, Export("run", spec, learnt.weights), extra=extra)


def _play_alike(directory: Path, space: gymnasium.Space[Any], spec: Spec) -> None:
    reader = documented("read_onnx.py")
    session, graph = reader["load"](directory)
    player = Player(load_export(directory))
    space.seed(3)
    seen: list[Any] = []
    memory, actions = None, set()
    for _ in range(60):
        newest = space.sample()
        seen = ([newest] * spec.frame_stack if not seen else [*seen, newest])[-spec.frame_stack :]
        found, memory = reader["act"](session, graph, seen, memory)
        if isinstance(found, dict):
            found = {name.removeprefix("action."): part for name, part in found.items()}
        expected = player.act(newest)
        assert_same_action(found, expected)
        actions.add(str(expected))
        if memory is not None:  # tells more than an action, which may be constant
            assert player._state is not None
            np.testing.assert_allclose(memory, player._state.memory[0], rtol=1e-3, atol=1e-4)
    assert memory is not None or len(actions) > 1
    assert (memory is not None) == bool(spec.network.state_size)


def test_a_name_that_is_no_part_of_the_observation_is_refused(tmp_path: Path) -> None:
    spec = spec_of(*SPACES["mode, position, target"])
    _export(tmp_path, spec)
    session = onnxruntime.InferenceSession(tmp_path / GRAPH)
    assert {one.name: (one.type, one.shape[1:]) for one in session.get_inputs()} == {
        "position": ("tensor(float)", [2]),
        "target": ("tensor(float)", [2]),
        "mode": ("tensor(int64)", []),
    }
    position, target, mode = np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32), np.array([3])
    session.run(None, {"position": position, "target": target, "mode": mode})
    for wrong in (
        {"vector": np.ones((1, 7), np.float32)},
        {"position": position, "target": target},
        {"position": mode, "target": target, "mode": position},
        {"position": np.ones((1, 3), np.float32), "target": target, "mode": mode},
        {"position": position.astype(np.float64), "target": target, "mode": mode},
    ):
        with pytest.raises((ValueError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument)):
            session.run(None, wrong)


def test_parts_may_have_the_names_of_other_values_of_the_graph(tmp_path: Path) -> None:
    """Names of outputs, of the memory and of the exporter's values, and names that are no identifiers."""
    names = ("action", "outputs", "memory", "memory_after", "linear", "tanh", "val_0", "cat", "a b/c", "")
    space = Dict({name: Box(-1, 1, (index % 3 + 1,), np.float32) for index, name in enumerate(names)})
    spec = make_spec(
        observation=describe_observations(space), network=LSTM, frame_stack=2, normalise_observations=True
    )
    _export(tmp_path, spec)
    _play_alike(tmp_path, space, spec)


def test_a_policy_that_cannot_be_a_graph_does_not_change_the_earlier_export(tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(b"of an earlier export")
    spec = make_spec(network=NetworkConfig(custom="tests.networks:LooksAtNumbers"))
    learnt_here = LoadedPolicy("run", make_description(spec), loaded(spec))
    with pytest.raises(ConfigurationError, match="--onnx no"):
        add_graph(tmp_path, learnt_here, {}, wanted=True)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"of an earlier export"]
    add_graph(tmp_path, learnt_here, {}, wanted=False)
    assert list(tmp_path.iterdir()) == []
