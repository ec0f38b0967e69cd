"""The rules of lock-step mode: the plan, the sampling and the batch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.protocol.lock_step import LockStep, lock_step_of
from dppo_redis.protocol.rollout import RolloutHeader
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from dppo_redis.store.rollout_stream import RunSnapshot
from learner.intake.batch_rule import ElasticBatch, LockStepBatch
from tests.factories import make_config, make_description, make_header, make_model, make_spec, make_weights
from workers.sampling_rule import LockStepSampling

A, B = "a" * 16, "b" * 16
SPEC = make_spec()


def planned(rollout_steps: int, **knobs: Any) -> LockStep:
    plan = lock_step_of(make_config(lock_step=True, **knobs), rollout_steps)
    assert plan is not None
    return plan


class TestPlan:
    def test_without_the_setting_there_is_none(self) -> None:
        assert lock_step_of(make_config(), 128) is None

    @pytest.mark.parametrize(
        ("actors", "rollout_steps", "rollouts"),
        [(1, 256, 1), (2, 128, 1), (3, 85, 1), (3, 32, 3), (2, 10, 13), (8, 256, 1)],
    )
    def test_whole_rounds_come_as_near_to_the_batch_as_they_can(
        self, actors: int, rollout_steps: int, rollouts: int
    ) -> None:
        """2048 steps from actors of 8 environments; a round is one rollout of each."""
        plan = planned(rollout_steps, actors=actors, envs_per_actor=8)
        assert (plan.actors, plan.rollouts) == (actors, rollouts)
        assert plan.rollouts_per_update == actors * rollouts

    def test_environments_are_rebuilt_at_a_segment_and_unless_the_last_update_is_the_one_before(self) -> None:
        plan = LockStep(actors=2, rollouts=1, segment_updates=10)
        assert plan.must_rebuild(13, None)  # a new process
        assert not plan.must_rebuild(13, 12)
        assert plan.must_rebuild(20, 19)  # the next segment
        assert plan.must_rebuild(14, 12)  # the learner went on without it
        assert plan.must_rebuild(11, 12)  # the learner went back
        assert plan.must_rebuild(12, 12)  # to other weights of the same update

    def test_it_travels_in_the_run_s_description(self) -> None:
        plan = LockStep(actors=2, rollouts=3, segment_updates=10)
        description = make_description(SPEC, lock_step=plan)
        assert RunDescription.from_text(description.to_text()) == description


def headers(*rollouts: tuple[int, str, int]) -> list[RolloutHeader]:
    """Of (slot, boot, seq) in order of arrival."""
    return [make_header(SPEC, actor=slot, boot=boot, seq=seq) for slot, boot, seq in rollouts]


def batch_of(rule: LockStepBatch, arriving: list[RolloutHeader]) -> list[tuple[int, str, int]]:
    gathered: list[RolloutHeader] = []
    for header in arriving:
        if rule.refusal(header, gathered) is None:
            gathered.append(header)
    assert rule.missing(gathered) == 0
    return [(gathered[i].actor, gathered[i].boot, gathered[i].seq) for i in rule.order(gathered)]


class TestBatch:
    RULE = LockStepBatch(LockStep(actors=3, rollouts=2, segment_updates=10))
    FULL = ((0, A, 7), (0, A, 8), (1, A, 1), (1, A, 2), (2, B, 4), (2, B, 5))

    @given(st.permutations(FULL))
    def test_a_batch_is_ordered_by_slot_and_sequence_in_any_order_of_arrival(
        self, arrival: list[tuple[int, str, int]]
    ) -> None:
        assert tuple(batch_of(self.RULE, headers(*arrival))) == self.FULL

    def test_missing_counts_down_to_the_full_batch(self) -> None:
        counts = [self.RULE.missing(headers(*self.FULL[:n])) for n in range(7)]
        assert counts == [6, 5, 4, 3, 2, 1, 0]

    def test_many_from_one_slot_do_not_stand_in_for_another(self) -> None:
        gathered = headers((0, A, 1), (0, B, 1), (0, A, 2))
        assert self.RULE.missing(gathered) == 4

    def test_slots_beyond_the_plan_and_more_than_planned_are_refused_by_name(self) -> None:
        gathered = headers((0, A, 7), (0, A, 8), (1, A, 1))
        (stranger, third, successor, second) = headers((3, A, 1), (0, A, 9), (0, B, 1), (1, A, 2))
        assert self.RULE.refusal(stranger, gathered) == "unplanned_slot"
        assert self.RULE.refusal(third, gathered) == "surplus"
        assert self.RULE.refusal(successor, gathered) == "surplus"
        assert self.RULE.refusal(second, gathered) is None

    def test_an_actor_that_died_amid_its_rollouts_is_replaced_by_its_successor(self) -> None:
        arrival = headers((0, A, 7), (1, A, 1), (0, B, 1), (0, B, 2), (1, A, 2), (2, B, 4), (2, B, 5))
        assert batch_of(self.RULE, arrival)[:2] == [(0, B, 1), (0, B, 2)]

    def test_the_elastic_rule_refuses_no_actor_and_keeps_the_order_of_arrival(self) -> None:
        rule = ElasticBatch(batch_steps=24, planned_rows=8)
        gathered = headers((2, A, 1), (0, A, 1), (1000, A, 1))
        assert [rule.missing(gathered[:n]) for n in range(4)] == [3, 2, 1, 0]
        assert rule.refusal(gathered[2], gathered) is None
        assert rule.order(gathered) == [0, 1, 2]


def weights(update: int, version: int, *, seed: int = 0, epoch: int = 1) -> Weights:
    return make_weights(SPEC, make_model(SPEC, seed), update=update, version=version, epoch=epoch)


def shown(of: Weights | None) -> RunSnapshot:
    return RunSnapshot(backlog=10**6, weights=None if of is None else of.id, state="run", backlog_high=1)


@pytest.fixture
def sampling() -> LockStepSampling:
    """Two rollouts of each weights, segments of ten updates."""
    return LockStepSampling(LockStep(actors=1, rollouts=2, segment_updates=10))


def send_rollouts(sampling: LockStepSampling, of: Weights, rollouts: int = 2) -> None:
    """Answer these weights with so many rollouts."""
    assert sampling.take_up(of) == []
    if sampling.must_rebuild():
        sampling.build(failures=0)
    for number in range(rollouts):
        sampling.sent(make_header(SPEC, update=of.update, version=of.version, seq=number + 1), b"rollout")


class TestSampling:
    def test_it_starts_rollouts_from_the_first_weights_until_it_has_sent_the_planned_number(
        self, sampling: LockStepSampling
    ) -> None:
        first, second = weights(0, 1), weights(1, 2)
        assert not sampling.may_start(shown(None))
        assert sampling.may_start(shown(first))
        send_rollouts(sampling, first, rollouts=1)
        assert sampling.may_start(shown(first))
        assert sampling.is_due()
        sampling.sent(make_header(SPEC, seq=2), b"rollout")
        assert not sampling.may_start(shown(first))
        assert not sampling.is_due()
        assert sampling.may_start(shown(second))
        sampling.take_up(second)
        assert sampling.is_due()

    def test_weights_that_come_again_get_the_same_rollouts_under_their_new_name(
        self, sampling: LockStepSampling
    ) -> None:
        send_rollouts(sampling, weights(0, 1))
        again = sampling.take_up(weights(0, 5, epoch=2))
        assert [(h.seq, h.epoch, h.version, payload) for h, payload in again] == [
            (1, 2, 5, b"rollout"),
            (2, 2, 5, b"rollout"),
        ]
        assert not sampling.is_due()
        assert sampling.take_up(weights(0, 5, epoch=2)) == []

    def test_other_weights_of_the_same_update_get_other_rollouts_of_other_environments(
        self, sampling: LockStepSampling
    ) -> None:
        send_rollouts(sampling, weights(3, 4))
        assert sampling.take_up(weights(3, 5, seed=1)) == []
        assert sampling.is_due()
        assert sampling.must_rebuild()

    def test_the_update_names_the_seeds_and_breakages_in_a_row_change_them(
        self, sampling: LockStepSampling
    ) -> None:
        sampling.take_up(weights(20, 21))
        assert sampling.build(failures=0) == (21, 0)
        assert sampling.build(failures=1) == (21, 1)

    def test_environments_that_missed_a_part_of_the_last_update_are_rebuilt(
        self, sampling: LockStepSampling
    ) -> None:
        send_rollouts(sampling, weights(0, 1), rollouts=1)
        sampling.take_up(weights(1, 2))
        assert sampling.must_rebuild()

    def test_a_new_start_is_made_once(self, sampling: LockStepSampling) -> None:
        """Also if its first rollout was refused and not sent."""
        sampling.take_up(weights(0, 1))
        sampling.build(failures=0)
        assert not sampling.must_rebuild()
        send_rollouts(sampling, weights(0, 1))
        sampling.take_up(weights(1, 2))
        assert not sampling.must_rebuild()
