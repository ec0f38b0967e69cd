"""Whole rollouts side by side, and rows in minibatch order."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.spaces.actions import ActionSpec
from learner.ppo.batch import Batch, Rows, minibatches, stack
from learner.ppo.prepare import prepare
from tests.factories import CPU, Row, box, make_batch, make_model, make_ppo, make_rollout, make_spec

SPEC = make_spec(rollout_steps=3)


def rows_of(batch: Batch, spec: Spec = SPEC) -> Rows:
    """The rows of an update; their log-probabilities number the rows, valid or not."""
    numbered = np.arange(batch.rewards.size, dtype=np.float32).reshape(batch.rewards.shape)
    numbered_batch = replace(batch, log_probs=numbered)
    return prepare(make_model(spec), spec, make_ppo(), None, numbered_batch, CPU).rows


def columns_of(rows: Rows) -> dict[str, torch.Tensor]:
    """Everything that a row holds, by name."""
    parts = {"vector": rows.inputs.vector, **vars(rows.actions)}
    return {**parts, **{name: x for name, x in vars(rows).items() if isinstance(x, torch.Tensor)}}


@pytest.mark.parametrize("action", [None, box()], ids=["discrete", "box"])
def test_rollouts_of_different_width_stand_side_by_side(action: ActionSpec | None) -> None:
    spec = make_spec(rollout_steps=3, action=action)
    rollouts = [make_rollout(spec, count=count, seed=count) for count in (2, 1, 4)]
    batch = stack(rollouts)
    place = 0
    for rollout in rollouts:
        columns = slice(place, place := place + rollout.rewards.shape[1])
        for name in ("observations", "actions", "log_probs", "rewards", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(batch, name)[:, columns], getattr(rollout, name))
        np.testing.assert_array_equal(batch.last_observations[columns], rollout.last_observations)
    assert batch.rewards.shape == (3, 7)
    assert batch.steps == 21


def test_each_column_carries_the_staleness_of_its_rollout() -> None:
    rollouts = [make_rollout(SPEC, count=count) for count in (2, 1, 3)]
    assert stack(rollouts, [0, 4, 1]).staleness.tolist() == [0, 0, 4, 1, 1, 1]
    assert stack(rollouts).staleness.tolist() == [0] * 6


def test_final_observations_worked_by_hand() -> None:
    """Row order of the batch is step before environment, across the rollouts."""

    def rollout(ends: list[Row], last_sequence_numbers: list[int]) -> Rollout:
        finals = np.array([[mark, mark] for mark in last_sequence_numbers], np.float32)
        return make_rollout(SPEC, count=2, terminated=ends, final_observations=finals)

    first = rollout([(0, 1), (2, 0)], [1, 20])
    second = rollout([(0, 0), (1, 1)], [2, 10])
    assert stack([first, second]).final_observations[:, 0].tolist() == [1, 2, 10, 20]


def slow_final_observations(rollouts: list[Rollout]) -> list[list[float]]:
    """Look up each ended row of the batch, one after another."""
    found: list[list[float]] = []
    for t in range(SPEC.rollout_steps):
        for rollout in rollouts:
            places = np.argwhere(rollout.ends)[:, 0] == t
            found += rollout.final_observations[places].tolist()
    return found


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_final_observations_land_in_the_row_order_of_the_batch(
    counts: list[int], share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def ends(count: int) -> list[Row]:
        return [(t, n) for t, n in np.ndindex(3, count) if rng.random() < share]

    rollouts = [
        make_rollout(SPEC, count=count, seed=index, terminated=ends(count), truncated=ends(count))
        for index, count in enumerate(counts)
    ]
    batch = stack(rollouts)
    assert batch.final_observations.tolist() == slow_final_observations(rollouts)
    assert len(batch.final_observations) == batch.ends.sum()


def test_episode_returns_keep_the_order_of_arrival() -> None:
    first, second = (
        make_rollout(SPEC, terminated=[(t, 0)], episode_returns=np.array([t], np.float32)) for t in (2, 0)
    )
    assert stack([first, second]).episode_returns.tolist() == [2, 0]


def test_a_batch_is_a_copy_that_survives_what_happens_to_the_rollouts() -> None:
    rollout = make_rollout(SPEC, terminated=[(1, 1)])
    batch = stack([rollout])
    kept = {name: array.copy() for name, array in vars(batch).items()}
    for array in vars(rollout).values():
        array[...] = 0
    for name, array in kept.items():
        np.testing.assert_array_equal(getattr(batch, name), array)


def test_decoded_rollouts_become_rows_without_a_warning_and_leave_the_payload_alone() -> None:
    """Known failure KF-WIRE-03: decoded arrays are read-only views, and tensors are written to."""
    payload = encode_rollout(make_rollout(SPEC, terminated=[(1, 1)]))
    before = decode_rollout(payload, SPEC).observations.copy()
    rows = rows_of(stack([decode_rollout(payload, SPEC)]))
    for tensor in columns_of(rows).values():
        tensor.zero_()
    np.testing.assert_array_equal(decode_rollout(payload, SPEC).observations, before)


def test_only_valid_rows_become_rows_and_in_row_order() -> None:
    rows = rows_of(make_batch(SPEC, count=2, invalid=[(0, 1), (2, 0)]))
    assert rows.old_log_probs.tolist() == [0, 2, 3, 5]
    assert {len(x) for x in columns_of(rows).values()} == {4}
    assert rows.valid.all()
    assert len(rows) == len(rows.inputs) == 4


@pytest.mark.parametrize(
    ("action", "categories", "dimensions"), [(None, 1, 0), (box(), 0, 2)], ids=["discrete", "box"]
)
def test_rows_have_the_shapes_that_the_loss_wants(
    action: ActionSpec | None, categories: int, dimensions: int
) -> None:
    spec = make_spec(rollout_steps=3, action=action)
    rows = rows_of(make_batch(spec), spec)
    assert rows.inputs.vector.shape == (6, 2)
    assert rows.actions.categories.shape == (6, categories)
    assert rows.actions.values.shape == (6, dimensions)
    assert {tuple(x.shape) for x in vars(rows).values() if isinstance(x, torch.Tensor)} == {(6,)}


def test_a_batch_without_valid_rows_has_no_rows_and_no_minibatch() -> None:
    batch = make_batch(SPEC)
    rows = rows_of(replace(batch, valid=np.zeros_like(batch.valid)))
    assert len(rows) == 0
    assert list(minibatches(rows, 4, torch.Generator())) == []


@given(count=st.integers(1, 12), size=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_minibatches_cover_every_row_exactly_once(count: int, size: int, seed: int) -> None:
    rows = rows_of(make_batch(SPEC, count=count))
    passes = list(minibatches(rows, size, torch.Generator().manual_seed(seed)))
    seen = torch.cat([minibatch.old_log_probs for minibatch in passes]).tolist()
    assert sorted(seen) == list(range(3 * count))
    assert [len(minibatch) for minibatch in passes[:-1]] == [size] * (len(passes) - 1)
    assert 1 <= len(passes[-1]) <= size


def test_the_last_minibatch_may_be_short() -> None:
    """Nine rows by four."""
    rows = rows_of(make_batch(SPEC, count=3))
    assert [len(minibatch) for minibatch in minibatches(rows, 4, torch.Generator())] == [4, 4, 1]


def test_a_row_keeps_its_numbers_together_when_rows_are_shuffled() -> None:
    rows = rows_of(make_batch(SPEC, count=5))
    whole = columns_of(rows)
    for minibatch in minibatches(rows, 4, torch.Generator().manual_seed(1)):
        for index, number in enumerate(minibatch.old_log_probs.int().tolist()):
            for name, column in columns_of(minibatch).items():
                torch.testing.assert_close(column[index], whole[name][number])


def order(seed: int, passes: int) -> list[list[float]]:
    rows = rows_of(make_batch(SPEC, count=5))
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.cat([minibatch.old_log_probs for minibatch in minibatches(rows, 4, generator)]).tolist()
        for _ in range(passes)
    ]


def test_each_pass_has_an_order_of_its_own_and_a_seed_repeats_them_all() -> None:
    first, second = order(seed=1, passes=2)
    assert first != second
    assert order(seed=1, passes=2) == [first, second]
    assert order(seed=2, passes=1) != [first]


def test_returns_are_advantages_plus_values() -> None:
    rows = rows_of(make_batch(SPEC, terminated=[(1, 0)]))
    torch.testing.assert_close(rows.returns, rows.advantages + rows.values)
    assert len(set(rows.values.tolist())) == 6


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("correction", ["none", "vtrace"])
def test_a_shorter_rollout_means_the_same_beside_longer_ones(correction: str, frame_stack: int) -> None:
    """Each row's estimates are those of its rollout alone; nothing is learnt from what was added."""
    ppo = make_ppo(correction=correction)
    specs = [make_spec(rollout_steps=steps, frame_stack=frame_stack) for steps in (5, 2, 4)]
    rollouts = [
        make_rollout(specs[0], count=2, seed=1, terminated=[(1, 0)], truncated=[(4, 1)]),
        make_rollout(specs[1], count=3, seed=2, terminated=[(1, 1)], truncated=[(0, 2)]),
        make_rollout(specs[2], count=2, seed=3, truncated=[(2, 0)], invalid=[(3, 0)]),
    ]
    model = make_model(specs[0])
    batch = stack(rollouts, [0, 2, 1])
    together = prepare(model, specs[0], ppo, None, batch, CPU)
    alone = [prepare(model, specs[0], ppo, None, stack([one]), CPU).rows for one in rollouts]
    assert len(together.rows) == batch.steps == sum(one.steps for one in rollouts)
    for name in ("advantages", "returns", "values", "old_log_probs"):
        expected = np.concatenate([getattr(rows, name).numpy() for rows in alone])
        found = getattr(together.rows, name).numpy()
        np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-5, atol=1e-6, err_msg=name)
    assert np.bincount(together.staleness).tolist() == [10, 7, 6]
    assert len(batch.episode_returns) == sum(len(one.episode_returns) for one in rollouts)


def test_rollouts_of_one_length_are_stacked_as_they_are() -> None:
    """Whatever that length is: nothing is added to those of a fleet that samples shorter ones."""
    short = make_spec(rollout_steps=2)
    batch = stack([make_rollout(short, count=2, seed=seed) for seed in range(3)])
    assert batch.rewards.shape == (2, 6)
    assert batch.valid.all()
    assert not batch.ends.any()
