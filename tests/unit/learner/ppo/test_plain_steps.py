"""Updates with the explicit gradient end close to updates with autograd, and share their checkpoints."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor

from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.protocol.config import Correction, NetworkConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.gymnasium_spaces import MaskSpace, describe_observations
from learner.ppo.adam import Adam
from learner.ppo.batch import Batch, stack
from learner.ppo.plain.flat_parameters import FlatAdam, FlatParameters
from learner.ppo.plain.networks import aligned
from learner.ppo.plain.steps import WIDEST_BY_HAND, PlainSteps, plain_networks
from learner.ppo.steps import AutogradSteps
from learner.ppo.update import PpoUpdate, UpdateReport
from tests.factories import CPU, discrete, make_model, make_policy, make_ppo, make_rollout, make_spec
from tests.unit.learner.ppo.plain_cases import ACTIONS, distance

KNOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dual and value clip": {"dual_clip": 1.5, "value_clip": 0.2},
    "entropy": {"entropy_coef": 0.05},
    "annealed": {
        "entropy_coef": 0.05, "anneal_learning_rate": True, "anneal_clip": True, "anneal_entropy": True
    },
    "normalised": {"normalise_observations": True, "normalise_returns": True},
    **{f"correction {name}": {"correction": name} for name in get_args(Correction)},
}  # fmt: skip


def make_updates(spec: Spec, *, by_hand: bool = True, seed: int = 0, **knobs: Any) -> PpoUpdate:
    with pytest.MonkeyPatch.context() as patch:
        if not by_hand:
            patch.setattr("learner.ppo.plain.steps.plain_networks", lambda *_: None)
        ppo = make_ppo(minibatch_size=24, **knobs)
        updates = PpoUpdate(make_model(spec, seed), spec, ppo, update_epochs=3, seed=seed, device=CPU)
    assert isinstance(updates._steps, PlainSteps if by_hand else AutogradSteps)
    return updates


def batch_of(spec: Spec, seed: int) -> Batch:
    """85 valid rows, so that the last minibatch is short; the second rollout is of another policy."""
    spec = replace(spec, normalise_observations=False)
    policies = make_policy(spec), make_policy(spec, make_model(spec, seed=1))
    ends: dict[str, Any] = {"terminated": [(4, 0), (11, 1)], "truncated": [(7, 1)], "invalid": [(8, 1)]}
    rollouts = [make_rollout(spec, seed=seed + i, policy=one, **ends) for i, one in enumerate(policies)]
    rollouts[0] = replace(rollouts[0], valid=np.ones_like(rollouts[0].valid))
    return stack(rollouts, staleness=[0, 2])


def weights_of(model: ActorCritic) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_alike(mine: UpdateReport, theirs: UpdateReport) -> None:
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "learning_rate"):
        assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=1e-3, abs=1e-5), name
    assert (mine.gradient_steps, mine.skipped_steps) == (theirs.gradient_steps, theirs.skipped_steps)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("knobs", KNOBS.values(), ids=list(KNOBS))
def test_updates_by_hand_and_by_autograd_end_close_together(action: str, knobs: dict[str, Any]) -> None:
    spec = make_spec(
        action=ACTIONS[action],
        rollout_steps=16,
        normalise_observations=knobs.get("normalise_observations", False),
        return_discount=0.99 if knobs.get("normalise_returns") else None,
    )
    mine, theirs = make_updates(spec, **knobs), make_updates(spec, by_hand=False, **knobs)
    begin = weights_of(mine.model)
    for update in range(3):
        batch = batch_of(spec, seed=10 * update)
        reports = [each.update(batch, progress=update / 4) for each in (mine, theirs)]
        assert_alike(*reports)
    assert reports[0].gradient_steps == 9  # a pass has 63 rows
    moved = weights_of(theirs.model) - begin
    assert float((weights_of(mine.model) - weights_of(theirs.model)).norm()) < 1e-3 * float(moved.norm())


def test_updates_under_an_action_mask_end_close_together() -> None:
    space = Dict({"observation": Box(-1, 1, (2,)), "action_mask": MaskSpace(4)})
    spec = make_spec(observation=describe_observations(space), action=discrete(4), rollout_steps=16)
    batch, rng = batch_of(spec, seed=0), np.random.default_rng(0)
    allowed = batch.observations["action_mask"]
    allowed[:] = rng.random(allowed.shape) < 0.5
    np.put_along_axis(allowed, batch.actions[..., None], 1, axis=-1)
    mine, theirs = make_updates(spec), make_updates(spec, by_hand=False)
    begin = weights_of(mine.model)
    assert_alike(mine.update(batch, 0.0), theirs.update(batch, 0.0))
    moved = weights_of(theirs.model) - begin
    assert float((weights_of(mine.model) - weights_of(theirs.model)).norm()) < 1e-3 * float(moved.norm())


@pytest.mark.parametrize("by_hand", [True, False])
def test_minibatches_whose_gradient_is_not_finite_are_skipped(by_hand: bool) -> None:
    spec = make_spec(rollout_steps=16)
    updates = make_updates(spec, by_hand=by_hand)
    batch = batch_of(spec, seed=0)
    rewards = batch.rewards.copy()
    rewards[-1, 0] = 1e30  # the square of its error is not finite
    before = weights_of(updates.model)
    report = updates.update(replace(batch, rewards=rewards), 0.0)
    assert report.skipped_steps == 9
    assert torch.equal(weights_of(updates.model), before)
    assert updates.optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize("first", [True, False], ids=["hand, then autograd", "autograd, then hand"])
def test_training_continues_from_a_checkpoint_of_the_other_kind_of_steps(first: bool) -> None:
    spec = make_spec(action=ACTIONS["Tuple"], rollout_steps=16)
    straight, begun = make_updates(spec, by_hand=first), make_updates(spec, by_hand=first)
    gone_on = make_updates(spec, by_hand=not first, seed=5)
    gone_on.update(batch_of(spec, seed=99), 0.0)  # has moments of its own
    for updates in (straight, begun):
        updates.update(batch_of(spec, seed=0), 0.0)
    gone_on.model.load_state_dict(begun.model.state_dict())
    gone_on.optimizer.load_state_dict(begun.optimizer.state_dict())
    gone_on.generator.set_state(begun.generator.get_state())
    for updates in (straight, gone_on):
        updates.update(batch_of(spec, seed=1), 0.0)
    mine, theirs = gone_on.optimizer.state_dict(), straight.optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for index, state in theirs["state"].items():
        assert list(mine["state"][index]) == list(state)
        for name, tensor in state.items():
            own = mine["state"][index][name]
            assert (own.shape, own.dtype) == (tensor.shape, tensor.dtype)
            assert distance(own.numpy(), tensor.numpy()) < 1e-3
    assert distance(weights_of(gone_on.model).numpy(), weights_of(straight.model).numpy()) < 1e-4


def test_a_state_without_moments_starts_from_zeros() -> None:
    spec = make_spec(rollout_steps=16)
    used, fresh = make_updates(spec), make_updates(spec)
    used.update(batch_of(spec, seed=3), 0.0)
    used.model.load_state_dict(fresh.model.state_dict())
    used.optimizer.load_state_dict(fresh.optimizer.state_dict())
    used.generator.set_state(fresh.generator.get_state())
    for updates in (used, fresh):
        updates.update(batch_of(spec, seed=0), 0.0)
    assert torch.equal(weights_of(used.model), weights_of(fresh.model))


def test_replaced_parameters_are_trained() -> None:
    spec = make_spec(rollout_steps=16)
    updates, twin = make_updates(spec), make_updates(spec)
    for parameter in updates.model.parameters():
        parameter.data = parameter.data.clone()
    for each in (updates, twin):
        each.update(batch_of(spec, seed=0), 0.0)
    assert torch.equal(weights_of(updates.model), weights_of(twin.model))


@pytest.mark.parametrize("hidden", [(8,), (100, 120)], ids=["one block", "several"])
def test_adam_takes_the_steps_of_torch(hidden: tuple[int, ...]) -> None:
    spec = make_spec(action=ACTIONS["Box"], hidden=hidden)
    mine, theirs = make_model(spec), make_model(spec)
    networks = plain_networks(mine, spec)
    assert networks is not None
    flat = FlatParameters(mine, networks.layout())
    own_optimizer = Adam(mine.parameters(), lr=1e-2, eps=1e-5)
    torchs = torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=1e-5, fused=True)
    adam, rng = FlatAdam(flat, own_optimizer), np.random.default_rng(0)
    names = dict(theirs.named_parameters())
    for step in range(50):
        gradient = (10.0 ** rng.integers(-3, 2) * rng.standard_normal(flat.values.size)).astype(np.float32)
        own = aligned(gradient.shape, np.float32)
        own[:] = gradient
        for (name, _), part in zip(networks.layout(), flat.views_of(gradient), strict=True):
            names[name].grad = part.clone()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        torchs.step()
        assert adam.step(own, max_norm=0.5)
        assert distance(weights_of(mine).numpy(), weights_of(theirs).numpy()) < 1e-6, step
    for mine_state, theirs_state in zip(own_optimizer.state.values(), torchs.state.values(), strict=True):
        assert torch.equal(mine_state["step"], theirs_state["step"])


@pytest.mark.parametrize(
    "network",
    [NetworkConfig(memory="gru", memory_size=4), NetworkConfig(custom="tests.networks:Linear")],
    ids=["memory", "custom"],
)
def test_other_networks_are_trained_by_autograd(network: NetworkConfig) -> None:
    make_updates(make_spec(network=network), by_hand=False)
    spec = make_spec(network=network)
    assert isinstance(PpoUpdate(make_model(spec), spec, make_ppo(), 1, 0, CPU)._steps, AutogradSteps)


@pytest.mark.parametrize(
    ("width", "kind"), [(WIDEST_BY_HAND, PlainSteps), (WIDEST_BY_HAND + 1, AutogradSteps)]
)
def test_wide_networks_are_trained_by_autograd_if_that_is_faster(width: int, kind: type) -> None:
    spec = make_spec(hidden=(4, width))
    assert isinstance(PpoUpdate(make_model(spec), spec, make_ppo(), 1, 0, CPU)._steps, kind)
