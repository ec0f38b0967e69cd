"""Keep or drop, from a rollout's header alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.protocol.lineage import Lineage, PublishedVersions
from learner.intake.staleness import Verdict, judge

FIRST_EPOCH = Lineage().begin(epoch=1, update=0)


def verdict(
    update: int,
    *,
    epoch: int = 1,
    lineage: Lineage = FIRST_EPOCH,
    learner_update: int = 10,
    max_staleness: int = 2,
) -> Verdict:
    return judge(epoch, update, lineage=lineage, learner_update=learner_update, max_staleness=max_staleness)


# Known failure KF-OPS-06, the rule.
@pytest.mark.parametrize("update", [10, 9, 8])
def test_limit_two_at_update_ten_keeps_rollouts_of_ten_nine_and_eight(update: int) -> None:
    assert verdict(update) is Verdict.FRESH


@pytest.mark.parametrize("update", [7, 6, 0])
def test_limit_two_at_update_ten_finds_older_rollouts_stale(update: int) -> None:
    assert verdict(update) is Verdict.STALE


def test_limit_zero_keeps_only_rollouts_of_the_present_weights() -> None:
    assert verdict(10, max_staleness=0) is Verdict.FRESH
    assert verdict(9, max_staleness=0) is Verdict.STALE


@pytest.mark.parametrize("update", [11, 12, 1000])
def test_a_rollout_from_the_future_is_refused_however_near_it_is(update: int) -> None:
    assert verdict(update) is Verdict.FROM_THE_FUTURE


# Known failure KF-OPS-02, the rule: a learner of epoch 1 reached update 50 and was killed; epoch 2
# continued from the checkpoint of update 40.
RESTARTED = FIRST_EPOCH.begin(epoch=2, update=40)


@pytest.mark.parametrize("update", [41, 45, 50])
def test_rollouts_of_abandoned_updates_are_refused(update: int) -> None:
    assert verdict(update, lineage=RESTARTED, learner_update=41) is Verdict.LOST_LINEAGE


def test_an_abandoned_update_stays_abandoned_when_the_new_epoch_has_passed_its_number() -> None:
    assert verdict(50, lineage=RESTARTED, learner_update=51) is Verdict.LOST_LINEAGE
    assert verdict(50, epoch=2, lineage=RESTARTED, learner_update=51) is Verdict.FRESH


@pytest.mark.parametrize("update", [40, 39])
def test_rollouts_from_before_the_restart_point_are_kept(update: int) -> None:
    assert verdict(update, lineage=RESTARTED, learner_update=41) is Verdict.FRESH


def test_rollouts_from_before_the_restart_point_grow_stale_like_others() -> None:
    assert verdict(38, lineage=RESTARTED, learner_update=41) is Verdict.STALE


def test_an_epoch_that_led_nowhere_is_refused() -> None:
    """Epoch 3 took over from the same checkpoint as epoch 2, which had saved nothing of its own."""
    without_epoch_two = FIRST_EPOCH.begin(epoch=3, update=40)
    assert verdict(40, epoch=2, lineage=without_epoch_two, learner_update=41) is Verdict.LOST_LINEAGE


def test_an_unknown_epoch_is_refused_and_so_is_everything_while_no_epoch_began() -> None:
    assert verdict(10, epoch=99) is Verdict.LOST_LINEAGE
    assert verdict(10, lineage=Lineage()) is Verdict.LOST_LINEAGE


def test_a_second_restart_further_back_abandons_what_the_first_had_kept() -> None:
    lineage = RESTARTED.begin(epoch=3, update=35)
    assert verdict(36, lineage=lineage, learner_update=36) is Verdict.LOST_LINEAGE
    assert verdict(40, epoch=2, lineage=lineage, learner_update=41) is Verdict.LOST_LINEAGE
    assert verdict(35, lineage=lineage, learner_update=36) is Verdict.FRESH


def test_beginning_an_epoch_leaves_the_old_lineage_as_it_was() -> None:
    assert FIRST_EPOCH.starts == ((1, 0),)
    assert RESTARTED.starts == ((1, 0), (2, 40))


def slow_ancestors(starts: list[tuple[int, int]], reached: int) -> set[tuple[int, int]]:
    """Live through all epochs: each begins from one update of the history and writes new ones."""
    event_log: list[tuple[int, int]] = []  # (epoch, update) of each publication that led here
    for index, (epoch, start) in enumerate(starts):
        event_log = [(e, u) for e, u in event_log if u <= start]
        last = starts[index + 1][1] + 3 if index + 1 < len(starts) else reached
        event_log += [(epoch, update) for update in range(start, last + 1)]
    return set(event_log)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 5))
def test_the_lineage_is_what_living_through_the_epochs_leaves(begins: list[int], more: int) -> None:
    """Epochs need not be consecutive numbers."""
    starts = [(2 * index + 1, update) for index, update in enumerate(begins)]
    reached = begins[-1] + more
    lineage = Lineage(tuple(starts))
    ancestors = slow_ancestors(starts, reached)
    for epoch, start in starts:
        for update in range(start, reached + 4):
            trained = verdict(update, epoch=epoch, lineage=lineage, learner_update=reached, max_staleness=100)
            known = (epoch, update) in ancestors
            assert (trained is Verdict.FRESH) == (known and update <= reached)


class TestVersions:
    """Epoch 1 published versions 1 to 7, epoch 2 those from 108 on; the newest is 110."""

    USED = PublishedVersions().cover(1, 1).cover(1, 7).cover(2, 108).cover(2, 110)

    @pytest.mark.parametrize(("epoch", "version"), [(1, 1), (1, 7), (1, 107), (2, 108), (2, 109), (2, 110)])
    def test_versions_that_may_have_been_published_are_accepted(self, epoch: int, version: int) -> None:
        """Those that a predecessor had reserved, too: it may have used them before it was killed."""
        assert self.USED.contains(epoch, version)

    @pytest.mark.parametrize("version", [0, 111, 2**63 - 1])
    def test_a_version_that_was_never_published_is_refused(self, version: int) -> None:
        assert judged(2, version, self.USED) is Verdict.UNPUBLISHED
        assert judged(1, version, self.USED) is Verdict.UNPUBLISHED

    def test_versions_of_another_epoch_are_refused(self) -> None:
        assert judged(2, 107, self.USED) is Verdict.UNPUBLISHED
        assert judged(1, 108, self.USED) is Verdict.UNPUBLISHED

    def test_a_lost_lineage_is_refused_by_that_name_with_any_version(self) -> None:
        assert judged(9, 2**63 - 1, self.USED) is Verdict.LOST_LINEAGE

    def test_a_predecessor_may_have_used_all_up_to_what_the_server_held(self) -> None:
        """A learner of epoch 2 that knew of version 100 alone; the server held 130."""
        used = PublishedVersions().cover(2, 101).beyond(130).cover(2, 131)
        assert used.contains(1, 130)
        assert used.contains(2, 131)
        assert not used.contains(1, 131)
        assert not used.contains(2, 132)

    def test_before_the_first_publication_there_is_none(self) -> None:
        assert not PublishedVersions().contains(1, 1)


def judged(epoch: int, version: int, used: PublishedVersions) -> Verdict:
    lineage = Lineage(((1, 0), (2, 10)))
    return judge(epoch, 10, lineage=lineage, learner_update=10, max_staleness=4, version=version, used=used)
