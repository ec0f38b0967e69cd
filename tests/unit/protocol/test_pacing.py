"""Numbers that follow from the configuration."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import example, given
from hypothesis import strategies as st

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.pacing import (
    Derived,
    FleetPacing,
    Pace,
    backlog_fresh,
    backlog_high,
    batch_is_full,
    expected_staleness,
    rollouts_missing,
    valve_bytes,
    valve_excess,
)
from dppo_redis.protocol.run_plan import as_used, derive
from dppo_redis.protocol.wire import encode_rollout
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from dppo_redis.spaces.observations import ObservationSpec
from tests.factories import box, discrete, make_config, make_rollout, make_spec

OBSERVATION = ObservationSpec.vector(4)
SPACES = EnvironmentSpaces(OBSERVATION, discrete(2))
SCREEN = describe_observations(Dict({"screen": Box(0, 255, (8, 9), np.uint8), "score": Discrete(3)}))
DICT = describe_actions(Dict({"a": Discrete(2), "b": Box(-1, 1, (3,))}))


def derived(*, serial: bool = False, **knobs: Any) -> Derived:
    return derive(make_config(**knobs), SPACES, serial=serial)


def test_numbers_worked_by_hand() -> None:
    """2048 steps from 2 actors of 8 environments: rollouts of 128 x 8 rows, two for an update.

    A row is 4 observations, an action of 8 bytes, log-probability, reward and three flags: 35 bytes.
    """
    assert derived(actors=2, envs_per_actor=8, max_staleness=4, ppo={"batch_steps": 2048}) == Derived(
        rollout_steps=128,
        sampled_steps=128,
        rollout_rows=1024,
        rollouts_per_update=2,
        samples_per_update=2048,
        update_epochs=6,
        gradient_steps_per_update=6 * 8,
        backlog_high=4,
        backlog_fresh=3,
        expected_staleness=1.0,
        rollout_bytes=1024 * 35 + 8 * 24,
        learner_bytes=300 * 2**20 + 2 * 2 * (1024 * 35 + 8 * 24) + 2048 * (3 * 16 + 4 * (4 + 4 * 128)),
        valve_bytes=64 * 2**20,
    )


def test_the_serial_baseline_is_one_actor_with_fresh_data() -> None:
    numbers = derived(serial=True, actors=64, envs_per_actor=8, ppo={"batch_steps": 2048})
    assert (numbers.rollout_steps, numbers.rollouts_per_update) == (256, 1)
    assert (numbers.update_epochs, numbers.expected_staleness) == (10, 0)


@pytest.mark.parametrize("serial", [False, True], ids=["fleet", "serial"])
def test_a_lock_step_run_has_the_same_numbers_in_one_process_and_as_a_fleet(serial: bool) -> None:
    """3 actors of 8 environments: rollouts of 85 steps, 2040 rows; fresh data wants the passes of serial."""
    numbers = derived(serial=serial, lock_step=True, actors=3, envs_per_actor=8, max_staleness=1)
    assert (numbers.rollout_steps, numbers.rollouts_per_update, numbers.samples_per_update) == (85, 3, 2040)
    assert (numbers.update_epochs, numbers.expected_staleness, numbers.backlog_high) == (10, 0, 3)


def test_a_run_keeps_rollout_length_and_passes_under_any_command_that_resumes_it() -> None:
    """Ten passes where the serial baseline began, also when a fleet goes on."""
    config = make_config(env_id="CartPole-v1")
    used = as_used(config, derive(config, SPACES, serial=True))
    fleet = used.model_copy(update={"actors": 4})
    numbers = derive(fleet, SPACES)
    assert (numbers.rollout_steps, numbers.update_epochs) == (256, 10)
    assert as_used(fleet, numbers) == fleet


def test_given_rollout_steps_and_passes_are_kept() -> None:
    numbers = derived(actors=2, envs_per_actor=8, rollout_steps=32, ppo={"update_epochs": 3})
    assert (numbers.rollout_steps, numbers.rollouts_per_update, numbers.update_epochs) == (32, 8, 3)
    assert numbers.gradient_steps_per_update == 3 * 8


def test_the_last_minibatch_of_a_pass_counts_as_a_gradient_step() -> None:
    numbers = derived(
        serial=True, envs_per_actor=3, rollout_steps=3, ppo={"batch_steps": 9, "minibatch_size": 4}
    )
    assert numbers.gradient_steps_per_update == 10 * 3


def test_more_environments_than_batch_steps_still_make_rollouts_of_one_step() -> None:
    numbers = derived(actors=1, envs_per_actor=64, ppo={"batch_steps": 8})
    assert (numbers.rollout_steps, numbers.rollouts_per_update) == (1, 1)


# Rule 15 of the design: the fleet changes the rate, never the batch.
@pytest.mark.parametrize("actors", [1, 2, 4, 8])
def test_the_batch_stays_as_large_when_the_fleet_grows(actors: int) -> None:
    assert derived(actors=actors, envs_per_actor=8, max_staleness=8).samples_per_update == 2048


@given(batch_steps=st.integers(8, 500), rows=st.integers(1, 500))
@example(batch_steps=96, rows=64)
@example(batch_steps=160, rows=64)
def test_an_update_takes_as_many_rollouts_as_a_full_batch_holds(batch_steps: int, rows: int) -> None:
    """Counted as the learner does: one rollout after another until the batch is full."""
    rollouts = 0
    while not batch_is_full(rollouts * rows, rows, batch_steps):
        rollouts += 1
    knobs: dict[str, Any] = {
        "actors": 1,
        "envs_per_actor": 1,
        "rollout_steps": rows,
        "ppo": {"batch_steps": batch_steps},
    }
    assert derived(max_staleness=10, **knobs).rollouts_per_update == rollouts


def test_a_batch_is_full_when_one_more_rollout_would_miss_the_number_by_more() -> None:
    assert batch_is_full(1000, 1000, batch_steps=1400)
    assert not batch_is_full(1000, 1000, batch_steps=1600)
    assert batch_is_full(2040, 1020, batch_steps=2048), "a few rows lost to resets"
    assert not batch_is_full(0, 1000, batch_steps=100), "nothing valid is no batch"


@given(valid_rows=st.integers(0, 200), last_rollout_rows=st.integers(1, 50), batch_steps=st.integers(8, 200))
@example(valid_rows=0, last_rollout_rows=64, batch_steps=96)
def test_the_missing_rollouts_make_the_batch_full(
    valid_rows: int, last_rollout_rows: int, batch_steps: int
) -> None:
    more = 1
    while not batch_is_full(valid_rows + more * last_rollout_rows, last_rollout_rows, batch_steps):
        more += 1
    assert rollouts_missing(valid_rows, last_rollout_rows, batch_steps) == more


@pytest.mark.parametrize("action", [discrete(3), box(), DICT], ids=["discrete", "box", "dict"])
@pytest.mark.parametrize("observation", [OBSERVATION, SCREEN], ids=["vector", "screen"])
@pytest.mark.parametrize("frame_stack", [1, 4])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_size_of_a_rollout_is_what_its_payload_takes(
    action: ActionSpec, observation: ObservationSpec, frame_stack: int, memory: Literal["none", "lstm"]
) -> None:
    """Except for names, shapes, and the final observations of ended episodes."""
    config = make_config(
        actors=1,
        envs_per_actor=8,
        rollout_steps=64,
        frame_stack=frame_stack,
        network={"memory": memory, "memory_size": 32},
    )
    numbers = derive(config, EnvironmentSpaces(observation, action))
    network = NetworkConfig(memory=memory, memory_size=32)
    spec = make_spec(
        action=action, observation=observation, rollout_steps=64, frame_stack=frame_stack, network=network
    )
    assert len(encode_rollout(make_rollout(spec, count=8))) == pytest.approx(numbers.rollout_bytes, abs=400)


@pytest.mark.parametrize(("minibatch_size", "instead"), [(100, 128), (200, 192), (16, 64), (65, 64)])
def test_a_memory_with_minibatches_that_are_no_whole_rollouts_is_refused_with_the_number_to_set(
    minibatch_size: int, instead: int
) -> None:
    knobs: dict[str, Any] = {"network": {"memory": "gru"}, "rollout_steps": 64}
    expected = rf"ppo\.minibatch_size \({minibatch_size}\) must be a multiple of the rollout length \(64\)"
    with pytest.raises(ConfigurationError, match=rf"{expected}.* set ppo\.minibatch_size to {instead}"):
        derived(**knobs, ppo={"minibatch_size": minibatch_size})
    derived(**knobs, ppo={"minibatch_size": instead})
    derived(rollout_steps=64, ppo={"minibatch_size": minibatch_size})


NINE = FleetPacing(
    planned_actors=1,
    rollouts_per_update=1,
    max_staleness=4,
    publish_every=1,
    rollout_steps=256,
    envs_per_actor=8,
    batch_steps=2048,
    keeps_length=False,
)


@pytest.mark.parametrize(
    ("actors", "steps", "per_update", "high"),
    [(1, 256, 1, 2), (2, 128, 2, 4), (3, 85, 3, 6), (9, 28, 9, 18), (300, 1, 256, 512)],
)
def test_a_larger_fleet_than_planned_samples_what_it_would_have_planned(
    actors: int, steps: int, per_update: int, high: int
) -> None:
    """2048 steps by 8 environments and so many actors."""
    assert NINE.pace(actors) == Pace(steps, per_update, high)
    assert NINE.advice(actors) == ""
    if actors < 300:
        planned = derived(actors=actors, envs_per_actor=8, max_staleness=4, ppo={"batch_steps": 2048})
        assert (planned.rollout_steps, planned.rollouts_per_update) == (steps, per_update)


def test_a_smaller_fleet_than_planned_keeps_the_length() -> None:
    planned = replace(NINE, planned_actors=4, rollout_steps=64, rollouts_per_update=4)
    assert [planned.pace(actors).rollout_steps for actors in (1, 3, 4, 5)] == [64, 64, 64, 51]


def test_a_run_of_one_actor_continues_with_nine_that_sample_a_ninth_each() -> None:
    config = make_config(actors=9, envs_per_actor=8, rollout_steps=256, ppo={"batch_steps": 2048})
    with pytest.raises(ConfigurationError, match="set max_staleness to 9"):
        derive(config, SPACES)
    now = derive(config, SPACES, may_shorten=True)
    anew = derive(make_config(actors=9, envs_per_actor=8, ppo={"batch_steps": 2048}), SPACES)
    assert (now.rollout_steps, now.sampled_steps) == (256, anew.rollout_steps)
    assert (now.rollouts_per_update, now.backlog_high, now.expected_staleness) == (
        anew.rollouts_per_update,
        anew.backlog_high,
        anew.expected_staleness,
    )
    pacing = FleetPacing.of(config, now)
    assert [pacing.pace(actors).rollout_steps for actors in (1, 4, 9, 18)] == [256, 256, 28, 14]


def test_a_network_with_a_memory_keeps_the_rollout_length_so_too_large_a_fleet_is_refused() -> None:
    knobs: dict[str, Any] = {"network": {"memory": "gru"}, "rollout_steps": 256, "envs_per_actor": 8}
    config = make_config(actors=9, ppo={"batch_steps": 2048, "minibatch_size": 256}, **knobs)
    with pytest.raises(ConfigurationError, match="9 actors with 1 rollouts per update cannot stay within"):
        derive(config, SPACES, may_shorten=True)


@pytest.mark.parametrize(
    ("staleness", "actors", "said"),
    [(None, 1, False), (1.5, 1, False), (1.6, 1, True), (1.4, 9, False), (2.5, 3, True)],
)
def test_there_is_advice_when_data_are_far_older_than_planned(
    staleness: float | None, actors: int, said: bool
) -> None:
    """One planned actor has at most two rollouts in the stream, and one update's time between them."""
    advice = NINE.staleness_advice(actors, staleness)
    assert (f"the mean staleness is {staleness} updates, and would be at most 1.0" in advice) == said
    assert bool(advice) == said
    assert (f"set actors to {actors}" in advice) == (said and actors > 1)
    assert replace(NINE, max_staleness=0).staleness_advice(actors, staleness) == ""


def test_rollouts_never_get_longer_than_the_runs_own() -> None:
    short = replace(NINE, rollout_steps=16, rollouts_per_update=16)
    assert [short.pace(actors).rollout_steps for actors in (1, 9, 16, 32)] == [16, 16, 16, 8]


def test_there_is_advice_for_rollouts_that_keep_their_length() -> None:
    memory = replace(NINE, keeps_length=True)
    assert memory.pace(9) == Pace(256, 1, 1)
    assert memory.advice(1) == ""
    advice = memory.advice(9)
    assert "9 actors sample a run planned for 1" in advice
    assert "max_staleness to 9 or more, or actors to 9 or rollout_steps to 28" in advice
    lock_step = replace(memory, max_staleness=0)
    assert (lock_step.pace(9).rollout_steps, lock_step.advice(9)) == (256, "")


def test_a_run_knows_whether_its_rollouts_may_be_shortened() -> None:
    def keeps(**knobs: Any) -> bool:
        config = make_config(**knobs)
        return FleetPacing.of(config, derive(config, SPACES)).keeps_length

    assert not keeps()
    assert keeps(lock_step=True)
    assert keeps(network={"memory": "gru"}, rollout_steps=64)


def test_backlog_limits_worked_by_hand() -> None:
    """Two rollouts for an update: two batches where the limit allows it, else what it allows."""
    assert backlog_high(rollouts_per_update=2, actors=2, max_staleness=4, publish_every=1) == 4
    assert backlog_high(rollouts_per_update=2, actors=2, max_staleness=1, publish_every=1) == 2
    assert backlog_high(rollouts_per_update=2, actors=2, max_staleness=4, publish_every=4) == 2
    assert backlog_high(rollouts_per_update=2, actors=3, max_staleness=0, publish_every=1) == -1


@pytest.mark.parametrize(
    ("actors", "per_update", "high", "mark"),
    [(1, 1, 2, 2), (2, 2, 4, 3), (4, 4, 8, 5), (1, 4, 8, 8), (4, 8, 16, 13), (8, 4, 8, 5), (4, 4, 4, 4)],
)
def test_backlog_limits_for_fresh_data_worked_by_hand(
    actors: int, per_update: int, high: int, mark: int
) -> None:
    assert backlog_fresh(high, per_update, actors) == mark


def test_a_limit_that_so_many_actors_cannot_keep_is_refused_with_the_number_to_set() -> None:
    fleet: dict[str, Any] = {
        "actors": 16,
        "envs_per_actor": 8,
        "rollout_steps": 128,
        "ppo": {"batch_steps": 2048},
    }
    with pytest.raises(ConfigurationError, match="set max_staleness to 8 or more") as caught:
        derived(max_staleness=1, **fleet)
    assert "16 actors" in str(caught.value)
    assert derived(max_staleness=8, **fleet).backlog_high >= 1


@given(
    actors=st.integers(1, 40),
    per_update=st.integers(1, 20),
    max_staleness=st.integers(1, 10),
    publish_every=st.integers(1, 3),
)
def test_the_number_that_a_refusal_names_is_enough(
    actors: int, per_update: int, max_staleness: int, publish_every: int
) -> None:
    knobs: dict[str, Any] = {
        "actors": actors,
        "envs_per_actor": 1,
        "rollout_steps": 8,
        "publish_every": publish_every,
        "ppo": {"batch_steps": 8 * per_update},
    }
    try:
        derived(max_staleness=max(max_staleness, publish_every), **knobs)
    except ConfigurationError as error:
        named = int(str(error).split("set max_staleness to ")[1].split()[0])
        assert named > max_staleness
        assert derived(max_staleness=named, **knobs).backlog_high >= 1


@dataclass
class Fleet:
    """Actors and a learner in whole ticks, as plain as can be; rollouts all take the same time."""

    actors: int
    per_update: int
    high: int
    rollout_ticks: int
    update_ticks: int
    publish_every: int = 1
    completed: int = 0  # updates
    published: int = 0  # the update that actors see
    waiting: list[int] = field(default_factory=list)  # rollouts by the update of their weights
    training: list[int] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    update_ends: int = 0
    busy: dict[int, tuple[int, int]] = field(default_factory=dict)  # actor: (ends at, update)

    def run(self, ticks: int) -> list[int]:
        """Staleness of every rollout when it was used."""
        for tick in range(ticks):
            for actor in range(self.actors):
                self._act(actor, tick)
            self._learn(tick)
        return self.ages

    def _act(self, actor: int, tick: int) -> None:
        if actor in self.busy and self.busy[actor][0] <= tick:
            self.waiting.append(self.busy.pop(actor)[1])
        first = actor * self.rollout_ticks // self.actors  # actors do not start together
        if actor not in self.busy and tick >= first and len(self.waiting + self.training) < self.high:
            self.busy[actor] = (tick + self.rollout_ticks, self.published)

    def _learn(self, tick: int) -> None:
        if self.training and self.update_ends <= tick:
            self.training = []
            self.completed += 1
            if self.completed % self.publish_every == 0:
                self.published = self.completed
        if not self.training and len(self.waiting) >= self.per_update:
            self.training, self.waiting = self.waiting[: self.per_update], self.waiting[self.per_update :]
            self.update_ends = tick + self.update_ticks
            self.ages += [self.completed - update for update in self.training]


fleets = given(
    actors=st.integers(1, 12),
    per_update=st.integers(1, 6),
    max_staleness=st.integers(1, 6),
    publish_every=st.integers(1, 4),
    rollout_ticks=st.integers(1, 30),
    update_ticks=st.integers(1, 30),
)


def staleness_in_a_fleet(
    actors: int,
    per_update: int,
    max_staleness: int,
    publish_every: int,
    rollout_ticks: int,
    update_ticks: int,
) -> list[int]:
    """The staleness of all rollouts; empty if the configuration would be refused."""
    publish_every = min(publish_every, max_staleness)
    knobs: dict[str, Any] = {
        "actors": actors,
        "envs_per_actor": 1,
        "rollout_steps": 8,
        "max_staleness": max_staleness,
        "publish_every": publish_every,
        "ppo": {"batch_steps": 8 * per_update},
    }
    try:
        high = derived(**knobs).backlog_high
    except ConfigurationError:
        return []
    fleet = Fleet(actors, per_update, high, rollout_ticks, update_ticks, publish_every)
    return fleet.run(ticks=400)


@fleets
def test_no_rollout_exceeds_the_staleness_limit_when_every_update_is_published(
    actors: int,
    per_update: int,
    max_staleness: int,
    publish_every: int,
    rollout_ticks: int,
    update_ticks: int,
) -> None:
    del publish_every
    ages = staleness_in_a_fleet(actors, per_update, max_staleness, 1, rollout_ticks, update_ticks)
    assert max(ages, default=0) <= max_staleness


@fleets
def test_no_rollout_exceeds_the_staleness_limit_when_some_updates_are_not_published(
    actors: int,
    per_update: int,
    max_staleness: int,
    publish_every: int,
    rollout_ticks: int,
    update_ticks: int,
) -> None:
    ages = staleness_in_a_fleet(actors, per_update, max_staleness, publish_every, rollout_ticks, update_ticks)
    assert max(ages, default=0) <= max_staleness


def busy_staleness(actors: int, per_update: int, publish_every: int, *, fresh: bool) -> tuple[float, float]:
    """The mean staleness in a fleet that is faster than its learner, and the expected one."""
    mark = backlog_high(per_update, actors, 20, publish_every)
    mark = backlog_fresh(mark, per_update, actors) if fresh else mark
    ages = Fleet(actors, per_update, mark, 5, 40, publish_every).run(ticks=8000)[100:]
    return sum(ages) / len(ages), expected_staleness(mark, actors, per_update, publish_every)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("publish_every", [1, 2, 4])
@pytest.mark.parametrize(("actors", "per_update"), [(1, 1), (2, 2), (4, 4), (8, 8), (4, 8), (1, 4)])
def test_the_expected_staleness_is_that_of_a_busy_learner(
    actors: int, per_update: int, publish_every: int, fresh: bool
) -> None:
    seen, promised = busy_staleness(actors, per_update, publish_every, fresh=fresh)
    assert seen == pytest.approx(promised, abs=0.05)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("publish_every", [1, 4])
@pytest.mark.parametrize(("actors", "per_update"), [(8, 4), (16, 4)])
def test_more_actors_than_rollouts_in_an_update_see_no_older_data_than_expected(
    actors: int, per_update: int, publish_every: int, fresh: bool
) -> None:
    seen, promised = busy_staleness(actors, per_update, publish_every, fresh=fresh)
    assert seen <= promised


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("rollout_ticks", [5, 15])
def test_the_learner_never_waits_for_actors_that_are_fast_enough(rollout_ticks: int, fresh: bool) -> None:
    """Two batches of backlog: one in training, one waiting."""
    mark = backlog_high(rollouts_per_update=4, actors=4, max_staleness=4, publish_every=1)
    mark = backlog_fresh(mark, 4, 4) if fresh else mark
    fleet = Fleet(actors=4, per_update=4, high=mark, rollout_ticks=rollout_ticks, update_ticks=20)
    fleet.run(ticks=1000)
    assert fleet.completed >= 1000 // 20 - 2


def test_the_valve_is_twice_what_a_paced_fleet_can_fill_and_64_mib_at_least() -> None:
    assert valve_bytes(high=10, actors=6, rollout_bytes=8 * 2**20) == 256 * 2**20
    assert valve_bytes(high=4, actors=2, rollout_bytes=36_000) == 64 * 2**20


@pytest.mark.parametrize(
    ("backlog", "stream_bytes", "excess"),
    [(1000, 1000, 0), (1000, 1001, 501), (1000, 4000, 875), (100, 10**9, 94), (6, 10**9, 0), (5, 10**9, 0)],
)
def test_the_valve_drops_down_to_half_its_limit_and_never_what_a_paced_fleet_may_fill(
    backlog: int, stream_bytes: int, excess: int
) -> None:
    assert valve_excess(backlog, stream_bytes, high=4, actors=2, limit=1000) == excess
