"""An ONNX graph answers what the policy answers, for any number of rows."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dppo_redis.artefacts.exports import GRAPH
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.observations import describe_observations
from ops.commands.export import add_graph
from ops.policies.load_policy import LoadedPolicy
from ops.policies.onnx_graph import feed, write_graph
from tests.envs.observations import Grid
from tests.factories import box, discrete, make_description, make_spec, random_observations
from tests.unit.artefacts.test_exports import LSTM, MASKED, NAMED, loaded

GRID = describe_observations(Grid.observation_space)
CASES = {
    "mask, frames and normaliser": make_spec(
        observation=MASKED, action=discrete(4), frame_stack=3, normalise_observations=True
    ),
    "image, categories and gru": make_spec(
        observation=NAMED, network=LSTM.model_copy(update={"memory": "gru"}), normalise_observations=True
    ),
    "image alone, lstm and real actions": make_spec(observation=GRID, network=LSTM, action=box()),
}


@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_a_graph_answers_what_the_policy_answers(spec: Spec, tmp_path: Path) -> None:
    weights = loaded(spec)
    entry = write_graph(tmp_path / "policy.onnx", weights, spec)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    policy = ActingPolicy(weights, spec)
    assert {one.name: one.shape[1:] for one in session.get_inputs()} == {
        name: one["shape"][1:] for name, one in entry["inputs"].items()
    }
    for count in (1, 5):
        _compare(session, policy, count)


def _compare(session: onnxruntime.InferenceSession, policy: ActingPolicy, count: int) -> None:
    """Both play a few steps, each with its own memory."""
    spec = policy.spec
    rng = np.random.default_rng(2)
    lead = (count, spec.frame_stack) if spec.frame_stack > 1 else (count,)
    memory = theirs = policy.begin(count)
    for _ in range(4):
        rows = random_observations(rng, lead, spec)
        outputs, memory = policy.step(rows, memory)
        answers = session.run(None, feed(spec, rows, theirs))
        np.testing.assert_allclose(answers[0], outputs, rtol=1e-4, atol=1e-5)
        same = (policy.action.split(policy.greedy(x))[0].tolist() for x in (answers[0], outputs))
        assert next(same) == next(same)
        theirs = answers[1] if len(answers) > 1 else theirs


def test_a_policy_that_no_graph_can_hold_leaves_the_earlier_export_as_it_was(tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(b"of an earlier export")
    spec = make_spec(network=NetworkConfig(custom="tests.networks:LooksAtNumbers"))
    learnt_here = LoadedPolicy("run", make_description(spec), loaded(spec))
    with pytest.raises(ConfigurationError, match="--onnx no"):
        add_graph(tmp_path, learnt_here, {}, wanted=True)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"of an earlier export"]
    add_graph(tmp_path, learnt_here, {}, wanted=False)
    assert list(tmp_path.iterdir()) == []
