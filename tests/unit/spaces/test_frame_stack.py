"""Frames travel one by one; the policy acts on the last k of them, and the learner sees the same k."""

import importlib.util
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from dppo_redis.policy.networks import Inputs
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.features import episode_starts, stack_frames
from dppo_redis.spaces.observations import Array
from learner.ppo.batch import stack
from learner.ppo.update import PpoUpdate
from tests.factories import CPU, inputs_of, make_policy, make_ppo, source
from tests.unit.playing import MODES, lively_model, play, read_by_learner, seeing, spec_of

FRAMES = pytest.mark.parametrize("frames", [1, 2, 4])
ALL_MODES = pytest.mark.parametrize("mode", MODES)


@dataclass
class ByHand:
    """A deque for each environment, filled with the first frame where an episode begins."""

    frames: int
    queues: dict[int, deque[Array]] = field(default_factory=dict)
    shown: list[Array] = field(default_factory=list)  # [N, k, ...] at each row
    final: list[Array] = field(default_factory=list)  # [k, ...] of each ended row, in row order

    def walk(self, rollout: Rollout) -> None:
        finals = iter(rollout.final_observations)
        for t in range(len(rollout.rewards)):
            self.shown.append(np.stack([self.see(n, x) for n, x in enumerate(rollout.observations[t])]))
            for n in range(rollout.rewards.shape[1]):
                if rollout.ends[t, n]:
                    self.final.append(self.with_next(n, next(finals)))
                if rollout.ends[t, n] or not rollout.valid[t, n]:
                    del self.queues[n]

    def see(self, n: int, frame: Array) -> Array:
        queue = self.queues.setdefault(n, deque([frame] * self.frames, self.frames))
        queue.append(frame)
        return np.stack(list(queue))

    def with_next(self, n: int, frame: Array) -> Array:
        """What would be seen with one frame more."""
        return np.stack([*list(self.queues[n])[1:], frame])


@FRAMES
@ALL_MODES
@pytest.mark.parametrize("env", ["Matrix", "Pair", "Grid"])
def test_the_policy_is_shown_what_a_deque_would_show_it(env: str, mode: AutoresetMode, frames: int) -> None:
    """Episodes of 3, 4 and 1 steps, rollouts of 7: no border of one is a border of the other."""
    spec = spec_of(env, frame_stack=frames)
    policy = seeing(make_policy(spec, lively_model(spec)))
    by_hand = ByHand(frames)
    valid = []
    for rollout in play(spec, mode, policy=policy, rollouts=3):
        by_hand.walk(rollout)
        valid += list(rollout.valid)
    assert len(policy.shown) == 21
    for shown, expected, rows in zip(policy.shown, by_hand.shown, valid, strict=True):
        seen = shown[:, None] if frames == 1 else shown
        np.testing.assert_array_equal(seen[rows], expected[rows])


@FRAMES
@ALL_MODES
@pytest.mark.parametrize("env", ["Matrix", "Everything"])
def test_the_learner_sees_what_the_policy_was_shown(env: str, mode: AutoresetMode, frames: int) -> None:
    spec = spec_of(env, frame_stack=frames)
    by_hand = ByHand(frames)
    for rollout in play(spec, mode, rollouts=3):
        by_hand.shown.clear()
        by_hand.final.clear()
        by_hand.walk(rollout)
        rows, bootstrap = read_by_learner(spec, lively_model(spec), rollout).read
        valid = torch.from_numpy(rollout.valid.reshape(-1))
        assert_same(rows.take(valid), read(spec, np.concatenate(by_hand.shown)).take(valid))
        assert_same(bootstrap.take(slice(3, None)), read(spec, np.stack(by_hand.final)))
        for n in by_hand.queues:  # episodes that go on
            expected = by_hand.with_next(n, rollout.last_observations[n])
            assert_same(bootstrap.take(slice(n, n + 1)), read(spec, expected[None]))


def read(spec: Spec, frames: Array) -> Inputs:
    """Frames [B, k, ...] as the network reads them."""
    return inputs_of(spec, frames[:, 0] if spec.frame_stack == 1 else frames)


def assert_same(ours: Inputs, theirs: Inputs) -> None:
    torch.testing.assert_close(
        (ours.vector, ours.images, ours.mask), (theirs.vector, theirs.images, theirs.mask)
    )


@ALL_MODES
def test_only_single_frames_travel(mode: AutoresetMode) -> None:
    one, four = (play(spec_of("Grid", frame_stack=frames), mode)[0] for frames in (1, 4))
    assert one.observations.shape == four.observations.shape == (7, 3, 8, 9, 3)
    assert one.frames_before.shape == (3, 0, 8, 9, 3)
    assert four.frames_before.shape == (3, 3, 8, 9, 3)


@FRAMES
def test_a_rollout_begins_with_the_frames_that_the_one_before_ended_with(frames: int) -> None:
    spec = spec_of("Matrix", frame_stack=frames)
    first, second = play(spec, rollouts=2, kwargs=[{"length": 100}])
    whole = np.concatenate([first.frames_before[0], first.observations[:, 0]])
    np.testing.assert_array_equal(second.frames_before[0], whole[len(whole) - (frames - 1) :])


def test_stacks_worked_by_hand() -> None:
    """Frames 1 to 5 of one environment after 8 and 9; an episode begins with frame 4."""
    rows = np.array([[1], [2], [3], [4], [5]])
    starts = np.array([[False], [False], [False], [True], [False]])
    stacks = stack_frames(rows, np.array([[8, 9]]), starts)
    assert stacks[:, 0].tolist() == [[8, 9, 1], [9, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]


def test_an_episode_begins_after_an_end_and_after_a_dummy_row() -> None:
    ends = np.array([[False, True], [True, False], [False, False], [False, True]])
    valid = np.array([[True, True], [True, False], [True, True], [True, True]])
    expected = [[False, False], [False, True], [True, True], [False, False]]
    assert episode_starts(ends, valid).tolist() == expected


@pytest.mark.parametrize("frames", [2, 3])
def test_our_stacks_are_those_of_the_wrapper_of_gymnasium(frames: int) -> None:
    """The same episodes, once stacked by us and once by the environment."""
    ours = spec_of("Matrix", frame_stack=frames)
    wrapper = f"FrameStackObservation(stack_size={frames}, padding_type='reset')"
    theirs = spec_of(source("tests.envs:Matrix-v0", wrapper))
    policy = seeing(make_policy(ours, lively_model(ours)))
    play(ours, policy=policy, rollouts=2)
    wrapped = play(theirs, rollouts=2)
    shown = np.stack(policy.shown)  # [2 T, N, k, 6]
    stacked = np.concatenate([rollout.observations for rollout in wrapped])  # [2 T, N, 6 k]
    np.testing.assert_array_equal(shown.reshape(stacked.shape), stacked)


def test_the_mask_of_a_stack_is_that_of_its_newest_frame() -> None:
    """The environment raises at an action that its present mask forbids."""
    spec = spec_of("Masked", frame_stack=3, rollout_steps=60)
    for mode in MODES:
        play(spec, mode)


def test_frames_of_dummy_rows_have_no_influence() -> None:
    """What a dummy row shows may be anything: nobody acts on it."""
    spec = spec_of("Matrix", frame_stack=3)
    (rollout,) = play(spec, AutoresetMode.NEXT_STEP)
    observations = rollout.observations.copy()
    observations[~rollout.valid] = 7
    assert (observations != rollout.observations).any()
    model = lively_model(spec)
    before, after = (
        read_by_learner(spec, model, one) for one in (rollout, replace(rollout, observations=observations))
    )
    valid = torch.from_numpy(rollout.valid.reshape(-1))
    assert_same(before.read[0].take(valid), after.read[0].take(valid))
    assert_same(before.read[1], after.read[1])


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ale_py", "cv2")),
    reason="no Atari: pip install ale-py opencv-python",
)
def test_atari_travels_as_single_grey_frames_and_trains_on_stacks_of_four() -> None:
    """By its usual wrapper, in 8 steps of 2 environments: 84 x 84 bytes a step, and no more."""
    atari = source("ale_py:ALE/Breakout-v5", "AtariPreprocessing(frame_skip=4)", frameskip=1)
    spec = spec_of(atari, network=NetworkConfig(hidden=(8,)), frame_stack=4, rollout_steps=8)
    assert spec.observation.row_shape == (84, 84)
    model = lively_model(spec)
    (rollout,) = play(spec, policy=make_policy(spec, model), kwargs=[{}, {}])
    assert rollout.observations.nbytes == 8 * 2 * 84 * 84
    report = PpoUpdate(model, spec, make_ppo(minibatch_size=8), 1, 0, CPU).update(stack([rollout]), 0.0)
    assert report.ratio_error is not None
    assert report.ratio_error < 1e-4
    assert report.gradient_steps == 2
