"""An environment's info["action_mask"]: what it forbids is never chosen."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_vector
from dppo_redis.environments.masks import read_mask
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, WireError
from dppo_redis.protocol.config import EnvValue
from dppo_redis.protocol.rollout import validate
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.features import mask
from dppo_redis.spaces.gymnasium_spaces import MaskSpace, describe_actions, describe_observations
from tests.envs.masks import NestedMasked
from tests.factories import (
    actions_of,
    box,
    discrete,
    inputs_of,
    make_collector,
    make_description,
    make_policy,
    make_rollout,
    make_spec,
    source,
)
from tests.unit.playing import GRU, MODES, SMALL, lively_model, play, spec_of
from workers.envs import Environments
from workers.episodes import evaluate

LENGTHS: list[dict[str, EnvValue]] = [{"length": 3, "cut": True}, {"length": 5}]


def masked_spec(**values: Any) -> Spec:
    """Four actions, a vector of two, and a mask."""
    space = Dict({"observation": Box(-1, 1, (2,)), "action_mask": MaskSpace(4)})
    return make_spec(observation=describe_observations(space), action=discrete(4), **values)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env", "network"),
    [
        *(("Masked", SMALL), ("MaskedPair", SMALL), ("Masked", GRU), ("Everything", SMALL)),
        *(("NestedMasked", SMALL), ("LaterMasked", SMALL)),
    ],
    ids=["one", "several", "recurrent", "of everything", "nested", "later"],
)
def test_no_forbidden_action_reaches_the_environment_in_two_hundred_steps(
    env: str, mode: AutoresetMode, network: Any
) -> None:
    """It raises at one."""
    spec = spec_of(env, network=network, rollout_steps=100)
    rollouts = play(spec, mode, kwargs=LENGTHS, rollouts=2)
    assert sum(len(rollout.episode_returns) for rollout in rollouts) > 60


def test_the_mask_travels_beside_the_observation() -> None:
    """Two of four in turn; everything where nothing is allowed, as in a final state."""
    spec = spec_of("Masked", rollout_steps=5)
    (rollout,) = play(spec, kwargs=[{"length": 3}])
    even, odd = [True, False, True, False], [False, True, False, True]
    shown = mask(spec.observation, rollout.observations)
    assert shown is not None
    assert shown[:, 0].tolist() == [even, odd, even, even, odd]
    final = mask(spec.observation, rollout.final_observations)
    assert final is not None
    assert final.tolist() == [[True] * 4]
    assert [field.name for field in spec.observation.fields] == ["action_mask", "observation"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_greedy_evaluation_obeys_the_mask(wrapped: bool) -> None:
    env = source("tests.envs:Masked-v0", "RecordEpisodeStatistics") if wrapped else "Masked"
    spec = spec_of(env)
    for seed in range(3):
        policy = make_policy(spec, lively_model(spec, seed))
        result = evaluate(policy, make_description(spec, evaluation_episodes=3), StopRequest())
        assert result.length_mean == 4


@pytest.mark.parametrize(
    "allowed", [[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1]], ids=lambda flags: "".join(map(str, flags))
)
def test_log_probability_and_entropy_are_those_of_the_allowed_choices_alone(allowed: list[int]) -> None:
    spec = masked_spec()
    model = lively_model(spec)
    rows = np.zeros(1, spec.observation.row_dtype)
    rows["action_mask"], rows["observation"] = allowed, [0.3, -0.7]
    with torch.no_grad():
        logits = model.policy(torch.tensor([[0.3, -0.7]]))[0][torch.tensor(allowed) > 0]
    expected = torch.distributions.Categorical(logits=logits)
    policy = make_policy(spec, model)
    outputs = policy.outputs(rows)
    for place, action in enumerate(np.flatnonzero(allowed)):
        chosen = np.array([action])
        with torch.no_grad():
            found = model.evaluate(inputs_of(spec, rows), actions_of(spec, chosen))
        log_prob = float(expected.log_prob(torch.tensor(place)))  # type: ignore[no-untyped-call]
        assert float(found.log_probs) == pytest.approx(log_prob, abs=1e-5)
        assert float(found.entropy) == pytest.approx(float(expected.entropy()), abs=1e-5)  # type: ignore[no-untyped-call]
        assert float(policy.log_probs(outputs[None], chosen[None])[0, 0]) == pytest.approx(log_prob, abs=1e-5)


def test_a_single_allowed_action_has_probability_one_and_no_entropy_and_no_gradient() -> None:
    spec = masked_spec()
    model = lively_model(spec)
    rows = np.zeros(2, spec.observation.row_dtype)
    rows["action_mask"] = [0, 1, 0, 0]
    found = model.evaluate(inputs_of(spec, rows), actions_of(spec, np.array([1, 1])))
    assert found.log_probs.tolist() == [0, 0]
    assert found.entropy.tolist() == pytest.approx([0, 0])
    (found.log_probs.sum() + found.entropy.sum()).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for name, p in model.named_parameters() if name.startswith("policy")]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("huge", [1e4, -1e4])
def test_a_logit_of_any_likely_size_does_not_outweigh_a_mask(huge: float) -> None:
    """Also when all allowed logits are far below the forbidden ones."""
    spec = masked_spec()
    model = lively_model(spec)
    with torch.no_grad():
        model.policy[-1].get_parameter("bias").copy_(torch.tensor([huge, -huge, huge, -huge]))
    policy = make_policy(spec, model)
    rows = np.zeros(500, spec.observation.row_dtype)
    rows["action_mask"] = [0, 1, 0, 1]
    outputs = policy.outputs(rows)
    drawn = policy.sample(outputs, policy.noise(np.random.default_rng(0), 1, 500)[0])
    assert set(drawn.tolist()) == {1, 3}
    assert policy.log_probs(outputs[None], drawn[None])[0] == pytest.approx(math.log(0.5), abs=0.5)


def test_a_forbidden_action_in_a_rollout_is_refused() -> None:
    spec = masked_spec()
    rollout = make_rollout(spec)
    validate(rollout, spec)
    rollout.observations["action_mask"][2, 1] = [1, 1, 1, 0]
    rollout.actions[2, 1] = 3
    with pytest.raises(WireError, match="mask forbids") as caught:
        validate(rollout, spec)
    assert caught.value.reason == "action"


def test_a_dummy_row_may_hold_any_action() -> None:
    """Nobody acted on it."""
    spec = masked_spec()
    rollout = make_rollout(spec, terminated=[(1, 1)], invalid=[(2, 1)])
    rollout.observations["action_mask"][2, 1] = [1, 1, 1, 0]
    rollout.actions[2, 1] = 3
    validate(rollout, spec)


def test_a_forbidden_part_of_several_is_refused() -> None:
    space = Dict({"observation": Box(-1, 1, (2,)), "action_mask": MaskSpace(5)})
    spec = make_spec(observation=describe_observations(space), action=describe_actions(MultiDiscrete([2, 3])))
    rollout = make_rollout(spec)
    rollout.observations["action_mask"][0, 0] = [1, 1, 0, 1, 1]
    rollout.actions[0, 0] = [0, 1]
    validate(rollout, spec)
    rollout.actions[0, 0] = [1, 0]
    with pytest.raises(WireError, match="mask forbids"):
        validate(rollout, spec)


@pytest.mark.parametrize(
    ("env", "shape", "choices"),
    [
        ("WronglyMasked", r"\(5,\)", "4 choices.*\\[4\\]"),
        ("RaggedlyMasked", r"\(2,\), \(4,\)", "5 choices.*\\[2, 3\\]"),
        ("MaskedBox", r"\(2,\)", "0 choices"),
    ],
)
def test_a_mask_of_another_shape_is_refused_at_the_start_by_name(env: str, shape: str, choices: str) -> None:
    with pytest.raises(ConfigurationError, match=rf'info\["action_mask"\].*{shape}.*{choices}'):
        inspect(source(f"tests.envs:{env}-v0"))


def test_a_mask_of_another_shape_can_be_ignored() -> None:
    spaces = inspect(source("tests.envs:WronglyMasked-v0"), use_mask=False)
    assert not spaces.observation.masked


FIVE = MultiDiscrete([2, 3])
NAMED = Dict({"push": Box(-1, 1, (2,)), "move": Tuple((FIVE, Discrete(2, start=5)))})


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (Discrete(3), [1, 0, 1], "101"),
        (Discrete(3), [np.array(1), np.array(0), np.array(1)], "101"),
        (FIVE, np.array([True, False, True, True, False]), "10110"),
        (FIVE, ([1, 0], [0, 0, 0]), "10111"),
        (MultiDiscrete(np.full((2, 2), 2)), ((([1, 0], [0, 1])), ([1, 1], [0, 1])), "10011101"),
        (MultiBinary(2), [[1, 0], [0, 1]], "1001"),
        (Tuple((FIVE, Discrete(2))), (([1, 0], [0, 1, 1]), [0, 1]), "1001101"),
        (Tuple((FIVE, Discrete(2))), ([1, 0, 0, 1, 1], [0, 1]), "1001101"),
        (Tuple((Discrete(2), Box(-1, 1, (2,)))), ([0, 1], None), "01"),
        (Tuple((Discrete(2), Box(-1, 1, (2,)))), [0, 1], "01"),
        (NAMED, {"push": None, "move": (None, [1, 0])}, "1111110"),
        (NAMED, {"move": (([1, 0], [0, 1, 1]), [0, 1])}, "1001101"),
    ],
    ids=str,
)
def test_a_mask_may_have_any_form_that_says_what_each_flag_is_for(
    space: Any, mask: Any, expected: str
) -> None:
    assert "".join(map(str, read_mask(mask, describe_actions(space)))) == expected


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (FIVE, ([1, 1, 1], [1, 1])),
        (FIVE, {"a": [1, 1]}),
        (Tuple((FIVE, Discrete(2))), (np.ones(2), np.ones(5))),
        (NAMED, {"moves": None}),
        (NAMED, {"push": np.ones(2)}),
        (MultiBinary(3), np.ones(3)),
    ],
    ids=str,
)
def test_a_mask_whose_flags_belong_elsewhere_is_refused_though_it_has_as_many(space: Any, mask: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'info\["action_mask"\] has .* choices, one flag for each'):
        read_mask(mask, describe_actions(space))


def test_a_nested_mask_allows_what_gymnasium_draws_with_it() -> None:
    env, spec = NestedMasked(), describe_actions(NestedMasked.action_space)
    for taken in range(6):
        env.taken = taken
        drawn = set()
        for action in (env.action_space.sample(mask=env.mask()) for _ in range(100)):
            (pair, turn) = action["move"]
            drawn |= set((spec.offsets + np.array([*pair, turn - 5])).tolist())
        assert drawn == set(np.flatnonzero(read_mask(env.mask(), spec)).tolist())


def test_an_inspected_environment_gets_an_allowed_action() -> None:
    """One of a thousand."""
    spaces = inspect(source("tests.envs:Narrow-v0"))
    assert spaces.action == discrete(1000)
    assert spaces.observation.masked


def test_masks_can_be_switched_off() -> None:
    """Then the observation is what it was, and the environment may meet what it forbids."""
    spec = spec_of("Masked", use_mask=False, rollout_steps=50)
    assert spec.observation == describe_observations(Box(-1, 1, (3,)))
    vector = make_vector(spec.environment, 2, "sync", masked=False)
    collector = make_collector(Environments(vector, [0, 1]), spec)
    with pytest.raises(EnvironmentBrokenError, match="is not allowed after"):
        collector.collect(make_policy(spec))


def test_an_environment_without_a_mask_has_none() -> None:
    assert not inspect(source("tests.envs:Matrix-v0")).observation.masked
    assert mask(make_spec(action=box()).observation, np.zeros((1, 2), np.float32)) is None
