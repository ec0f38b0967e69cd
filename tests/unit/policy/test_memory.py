"""Recurrent policies: the learner's unrolled memory equals the actor's."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.policy.networks import Memory, Sequences
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.observations import Array
from learner.ppo.batch import minibatches, stack
from learner.ppo.prepare import prepare
from learner.ppo.update import PpoUpdate
from tests.factories import (
    CPU,
    actions_of,
    inputs_of,
    make_batch,
    make_collector,
    make_model,
    make_policy,
    make_ppo,
    make_rollout,
    make_spec,
    make_weights,
)
from tests.unit.playing import (
    GRU,
    LSTM,
    MODES,
    SMALL,
    lively_model,
    play,
    read_by_learner,
    spec_of,
    vector_of,
)
from workers.envs import Environments

Kind = Literal["lstm", "gru"]
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru"])
NETWORKS = pytest.mark.parametrize("network", [LSTM, GRU], ids=["lstm", "gru"])


def make_memory(kind: Kind, inputs: int = 3, size: int = 4) -> Memory:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        memory = Memory(inputs, size, kind)
        for parameter in memory.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return memory


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def slow_step(memory: Memory, x: Array, state: Array) -> Array:
    """One step of one environment in plain numpy, from the definitions; the state afterwards."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().double().numpy() for p in memory.cell.parameters())
    h, c = np.split(state, 2) if memory.lstm else (state, None)
    of_x, of_h = w_ih @ x + b_ih, w_hh @ h + b_hh
    if c is not None:
        i, f, g, o = np.split(of_x + of_h, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return np.concatenate([sigmoid(o) * np.tanh(c), c])
    (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(of_x, 3), np.split(of_h, 3)
    z = sigmoid(z_x + z_h)
    return np.asarray((1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h)


def slow_unroll(memory: Memory, x: Array, starts: Array, state: Array) -> Array:
    """States after every row [T, C, S], environment by environment, step by step."""
    states = np.empty((*starts.shape, state.shape[1]))
    for n, one in enumerate(state.astype(np.float64)):
        for t in range(len(starts)):
            one = slow_step(memory, x[t, n], np.zeros_like(one) if starts[t, n] else one)
            states[t, n] = one
    return states


@KINDS
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_unrolled_memory_equals_steps_in_plain_numpy(kind: Kind, share: float) -> None:
    memory = make_memory(kind)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 5, 3)).astype(np.float32)
    starts = rng.random((9, 5)) < share
    state = rng.standard_normal((5, 8 if kind == "lstm" else 4)).astype(np.float32)
    sequences = Sequences(torch.from_numpy(starts), torch.from_numpy(state))
    rows = torch.from_numpy(x.reshape(45, 3))
    with torch.no_grad():
        outputs, last = memory(rows, sequences)
        states = memory.states(rows, sequences)
    expected = slow_unroll(memory, x, starts, state)
    np.testing.assert_allclose(states.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(last.numpy(), expected[-1], atol=1e-5)
    np.testing.assert_allclose(outputs.numpy(), expected[..., :4].reshape(45, 4), atol=1e-5)


@KINDS
def test_gradients_flow_through_time_but_not_into_another_episode_or_environment(kind: Kind) -> None:
    memory = make_memory(kind)
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[3, 0] = True
    sequences = Sequences(starts, torch.ones(2, 8 if kind == "lstm" else 4, requires_grad=True))
    for n, reached in ((0, [False, False, False, True, True]), (1, [True] * 5)):
        x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        outputs, _ = memory(x, sequences)
        (of_x, of_state) = torch.autograd.grad(outputs.reshape(5, 2, 4)[4, n].sum(), (x, sequences.state))
        flows = of_x.reshape(5, 2, 3).abs().sum(-1) > 1e-9
        assert flows[:, n].tolist() == reached
        assert not flows[:, 1 - n].any()
        assert bool(of_state[n].any()) == reached[0]


@dataclass
class ByHand:
    """Plays a rollout's observations again, one environment and one step at a time."""

    spec: Spec
    model: ActorCritic
    states: dict[int, Tensor] = field(default_factory=dict)  # of episodes that go on
    values: list[float] = field(default_factory=list)  # of each row
    log_probs: list[float] = field(default_factory=list)
    memories: list[Array] = field(default_factory=list)  # before each row
    final: list[float] = field(default_factory=list)

    @torch.no_grad()
    def walk(self, rollout: Rollout) -> None:
        self.values, self.log_probs, self.memories, self.final = [], [], [], []
        finals = iter(rollout.final_observations)
        for t, n in np.ndindex(*rollout.rewards.shape):
            state = self.states.get(n, torch.zeros(1, self.spec.network.state_size))
            self.memories.append(state[0].numpy())
            inputs = inputs_of(self.spec, rollout.observations[t, n][None])
            none = torch.zeros(1, 1, dtype=torch.bool)
            inputs = inputs.with_sequences(Sequences(none, state))
            self.values.append(float(self.model.values(inputs)))
            actions = actions_of(self.spec, rollout.actions[t, n][None])
            self.log_probs.append(float(self.model.evaluate(inputs, actions).log_probs))
            _, self.states[n] = self.model.step(inputs)
            if rollout.ends[t, n]:
                self.final.append(self.value(n, next(finals)))
            if rollout.ends[t, n] or not rollout.valid[t, n]:
                del self.states[n]

    @torch.no_grad()
    def value(self, n: int, observation: Array) -> float:
        """V of an observation that comes next."""
        none = torch.zeros(1, 1, dtype=torch.bool)
        inputs = inputs_of(self.spec, observation[None]).with_sequences(Sequences(none, self.states[n]))
        return float(self.model.values(inputs))


@NETWORKS
@pytest.mark.parametrize("env", ["Matrix", "Everything"])
@pytest.mark.parametrize("mode", MODES)
def test_actor_and_learner_agree_with_steps_one_at_a_time(
    env: str, mode: AutoresetMode, network: NetworkConfig
) -> None:
    """Log-probabilities, shipped state, and values of all rows, of last and of final observations."""
    spec = spec_of(env, network=network)
    model = lively_model(spec)
    by_hand = ByHand(spec, model)
    rollouts = play(spec, mode, policy=make_policy(spec, model), rollouts=3)
    assert rollouts[0].memory.any() == 0
    assert rollouts[1].memory.any()
    for rollout in rollouts:
        by_hand.walk(rollout)
        valid = rollout.valid.reshape(-1)
        assert rollout.log_probs.reshape(-1)[valid] == pytest.approx(
            np.array(by_hand.log_probs)[valid], abs=2e-5
        )
        np.testing.assert_allclose(rollout.memory, np.stack(by_hand.memories[:3]), atol=1e-5)
        values, beyond = read_by_learner(spec, model, rollout).answered
        assert values[valid] == pytest.approx(np.array(by_hand.values)[valid], abs=1e-5)
        assert beyond[3:] == pytest.approx(by_hand.final, abs=1e-5)
        for n in by_hand.states:
            assert beyond[n] == pytest.approx(by_hand.value(n, rollout.last_observations[n]), abs=1e-5)


@NETWORKS
def test_the_state_is_carried_from_one_rollout_to_the_next_and_dropped_where_an_episode_ended(
    network: NetworkConfig,
) -> None:
    """Rollouts of 7 steps: the episode of 7 steps is over, that of 100 goes on."""
    spec = spec_of("Matrix", network=network)
    _, second = play(spec, rollouts=2, kwargs=[{"length": 7}, {"length": 100}])
    assert second.memory.shape == (2, spec.network.state_size)
    assert not second.memory[0].any()
    assert second.memory[1].all()


@NETWORKS
def test_minibatches_are_whole_columns_with_their_own_state(network: NetworkConfig) -> None:
    spec = make_spec(network=network, rollout_steps=4)
    batch = make_batch(spec, count=5, terminated=[(1, 2)], invalid=[(2, 2)])
    numbered = replace(batch, log_probs=np.arange(20, dtype=np.float32).reshape(4, 5))
    rows = prepare(make_model(spec), spec, make_ppo(), None, numbered, CPU).rows
    assert len(rows) == 20
    assert int(rows.valid.sum()) == 19
    seen = []
    for minibatch in minibatches(rows, 8, torch.Generator().manual_seed(1)):
        numbers = minibatch.old_log_probs.int().reshape(4, -1)
        columns = numbers[0].tolist()
        assert numbers.tolist() == [[5 * t + n for n in columns] for t in range(4)]
        sequences = minibatch.inputs.sequences
        assert sequences is not None
        assert sequences.starts.tolist() == [[t in (2, 3) and n == 2 for n in columns] for t in range(4)]
        np.testing.assert_array_equal(sequences.state, batch.memory[columns])
        flat = numbers.flatten().tolist()
        torch.testing.assert_close(minibatch.inputs.vector, rows.inputs.vector[flat])
        seen.append(columns)
    assert [len(columns) for columns in seen] == [2, 2, 1]
    assert sorted(n for columns in seen for n in columns) == [0, 1, 2, 3, 4]


@NETWORKS
def test_a_minibatch_says_of_its_rows_what_the_whole_batch_does(network: NetworkConfig) -> None:
    spec = make_spec(network=network, rollout_steps=6)
    model = lively_model(spec)
    batch = make_batch(spec, count=4, terminated=[(1, 2), (4, 0)])
    rows = prepare(model, spec, make_ppo(), None, batch, CPU).rows
    with torch.no_grad():
        whole = model.evaluate(rows.inputs, rows.actions)
        for minibatch in minibatches(rows, 12, torch.Generator()):
            # Values before the update stand beside each row.
            found = model.evaluate(minibatch.inputs, minibatch.actions)
            torch.testing.assert_close(found.values, minibatch.values)
    torch.testing.assert_close(whole.values, rows.values)


# Known failure KF-PPO-03.
@NETWORKS
def test_a_column_without_valid_rows_makes_no_step(network: NetworkConfig) -> None:
    spec = make_spec(network=network)
    batch = make_batch(spec, count=2, invalid=[(t, 0) for t in range(4)])
    model = make_model(spec)
    report = PpoUpdate(model, spec, make_ppo(minibatch_size=4), 1, 0, CPU).update(batch, 0.0)
    assert (report.gradient_steps, report.skipped_steps) == (1, 1)
    assert all(bool(x.isfinite().all()) for x in model.state_dict().values())


@NETWORKS
def test_rows_that_are_not_valid_have_no_influence(network: NetworkConfig) -> None:
    spec = make_spec(network=network)
    rollout = make_rollout(spec, terminated=[(0, 0)], truncated=[(2, 1)], invalid=[(1, 0), (3, 1)])

    def after(junk: float) -> Iterator[Any]:
        spoiled = {name: getattr(rollout, name).copy() for name in ("observations", "rewards", "log_probs")}
        for array in spoiled.values():
            array[~rollout.valid] = junk
        model = make_model(spec)
        PpoUpdate(model, spec, make_ppo(), 2, 0, CPU).update(stack([replace(rollout, **spoiled)]), 0.0)
        return (x.tolist() for x in model.state_dict().values())

    assert list(after(0)) == list(after(100))


def recall(network: NetworkConfig) -> float:
    """Mean return of the last rollout of a run of 16 updates of 512 steps; episodes cross rollouts."""
    spec = spec_of("Recall", network=network, rollout_steps=8)
    kwargs: list[dict[str, Any]] = [{}] * 64
    environments = Environments(vector_of(spec, AutoresetMode.SAME_STEP, kwargs), list(range(64)))
    collector = make_collector(environments, spec)
    ppo = make_ppo(learning_rate=0.02, minibatch_size=160)
    trainer = PpoUpdate(make_model(spec), spec, ppo, 4, 0, CPU)
    for _ in range(16):
        policy = ActingPolicy(make_weights(spec, arrays=trainer.acting_arrays()), spec)
        rollout = collector.collect(policy)
        trainer.update(stack([rollout]), 0.0)
    return float(rollout.episode_returns.mean())


@NETWORKS
def test_a_memory_learns_to_recall(network: NetworkConfig) -> None:
    """A return of 4; a policy that forgets the sign has 2 on average."""
    assert recall(network) > 3.5


def test_without_a_memory_nothing_can_be_recalled() -> None:
    assert recall(SMALL) < 2.7
