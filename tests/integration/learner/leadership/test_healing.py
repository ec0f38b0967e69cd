"""One or two rounds of the keeper repair a run's keys after another client changed them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, TransientError
from dppo_redis.store.keys import GROUP, RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutProducer
from dppo_redis.store.weight_store import WeightStore
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import Leadership
from tests.conftest import RedisServer, memory_limit, opened
from tests.factories import make_header
from tests.integration.learner_side import add, lead, make_entry, make_keeper, make_reader
from tests.integration.looking import hash_of, holder_of, imbalance, integer, ledger_of, version_of

HEALED = ("weights", "spec", "ledger", "boots", "control", "rollouts", "status")
ALSO_OVERWRITTEN = ("lease", "epoch", "actors")


@dataclass
class Run:
    """A learner that has published, five rollouts of which two were trained on, one actor's boot."""

    client: Client
    keys: RunKeys
    leadership: Leadership
    keeper: Keeper

    def key(self, name: str) -> str:
        return str(getattr(self.keys, name))

    def tick_twice(self) -> None:
        self.keeper.tick()
        self.keeper.tick()


@pytest.fixture
def run(client: Client, keys: RunKeys, stop: StopRequest) -> Run:
    leadership = lead(client, keys, stop)
    keeper = make_keeper(client, keys, leadership)
    ids = add(client, keys, *[make_entry(seq=seq) for seq in range(1, 6)])
    Registry(client, keys).join(0)
    Registry(client, keys).join(0)
    leadership.bookkeeper.settle([Settlement(entry, Outcome.TRAINED, steps=8) for entry in ids[:2]])
    keeper.tick()
    return Run(client, keys, leadership, keeper)


def assert_healthy(run: Run, version_before: int) -> None:
    client, keys = run.client, run.keys
    weights = WeightStore(client, keys).fetch()
    assert weights is not None
    assert (weights.epoch, weights.version) == (run.leadership.fence.epoch, run.leadership.publisher.version)
    assert weights.version >= version_before
    assert RunDescription.from_text(cast(bytes, client.get(keys.spec))).digest == weights.spec
    assert hash_of(client, keys.boots) == {"0": "2"}
    control = hash_of(client, keys.control)
    assert (control["state"], int(control["backlog_high"]) > 0) == ("run", True)
    assert [group["name"] for group in client.xinfo_groups(keys.rollouts)] == [GROUP.encode()]
    assert holder_of(client, keys) == run.leadership.lease.owner
    assert imbalance(client, keys) == 0
    assert ledger_of(client, keys)["trained"] == 2
    status = hash_of(client, keys.status)
    assert (status["imbalance"], status["version"]) == ("0", str(weights.version))


def overwrite(run: Run, name: str) -> None:
    """A value of a type that the key never has."""
    run.client.delete(run.key(name))
    if name in ("spec", "lease", "epoch"):
        run.client.hset(run.key(name), "not", "a string")
    else:
        run.client.set(run.key(name), "of another type")


@pytest.mark.parametrize("name", HEALED)
def test_a_key_that_was_deleted_is_put_back(run: Run, name: str) -> None:
    before = version_of(run.client, run.keys)
    run.client.delete(run.key(name))
    run.tick_twice()
    assert_healthy(run, before)


@pytest.mark.parametrize("name", HEALED + ALSO_OVERWRITTEN)
def test_a_key_of_another_type_is_put_right(run: Run, name: str) -> None:
    before = version_of(run.client, run.keys)
    overwrite(run, name)
    run.tick_twice()
    assert_healthy(run, before)


def test_boots_of_another_type_are_put_right_before_the_first_actor_joins(
    client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    keeper = make_keeper(client, keys, lead(client, keys, stop))
    client.set(keys.boots, "of another type")
    keeper.tick()
    assert Registry(client, keys).join(0) == (0, 1)


@pytest.mark.parametrize("name", ["lease", "epoch"])
def test_a_right_to_lead_that_was_deleted_is_taken_again(run: Run, name: str) -> None:
    before = version_of(run.client, run.keys)
    run.client.delete(run.key(name))
    run.tick_twice()
    assert_healthy(run, before)


NO_COUNTS = ("first", "1e300", "9223372036854775807", "-5", "nan", "inf", "0.5")


@pytest.mark.parametrize("value", NO_COUNTS)
def test_an_epoch_that_is_no_count_does_not_end_the_learner(run: Run, value: str) -> None:
    before = version_of(run.client, run.keys)
    run.client.set(run.keys.epoch, value)
    run.tick_twice()
    assert_healthy(run, before)


@pytest.mark.parametrize("value", NO_COUNTS)
def test_a_version_that_is_no_count_is_put_right(run: Run, value: str) -> None:
    before = version_of(run.client, run.keys)
    run.client.hset(run.keys.weights, "version", value)
    run.tick_twice()
    assert_healthy(run, before)
    assert version_of(run.client, run.keys) == before + 1


def test_a_lease_without_an_expiry_belongs_to_no_learner(run: Run, stop: StopRequest) -> None:
    before = version_of(run.client, run.keys)
    run.client.set(run.keys.lease, "somebody")
    run.tick_twice()
    assert_healthy(run, before)
    run.client.set(run.keys.lease, "somebody")
    successor = lead(run.client, run.keys, stop)
    assert successor.fence.epoch == run.leadership.fence.epoch + 1


def test_after_flushall_everything_is_back_with_a_higher_epoch_and_version(run: Run) -> None:
    epoch, version = run.leadership.fence.epoch, run.leadership.publisher.version
    run.client.flushall()
    run.keeper.tick()
    weights = WeightStore(run.client, run.keys).fetch()
    assert weights is not None
    assert weights.epoch > epoch
    assert weights.version > version
    run.client.hset(run.keys.boots, "0", "2")
    run.keeper.tick()
    assert_healthy(run, version)


def test_after_flushall_boot_numbers_are_put_back(run: Run) -> None:
    run.client.flushall()
    run.keeper.tick()
    assert hash_of(run.client, run.keys.boots) == {"0": "2"}


def test_boot_numbers_that_are_none_are_put_right(run: Run) -> None:
    run.client.hset(run.keys.boots, mapping={"0": "x", "7": "y", "next": "z"})
    registry = Registry(run.client, run.keys)
    for slot in (0, 7, None):
        with pytest.raises(TransientError):
            registry.join(slot)
    run.keeper.tick()
    assert [registry.join(slot)[1] for slot in (0, 7, None)] == [3, 1, 1]


def test_a_boot_number_that_fell_is_raised_again(run: Run) -> None:
    run.client.delete(run.keys.boots)
    assert Registry(run.client, run.keys).join(1) == (1, 1)
    run.tick_twice()
    assert hash_of(run.client, run.keys.boots) == {"0": "2", "1": "1"}


def flushall(run: Run) -> None:
    run.client.flushall()


def delete_stream(run: Run) -> None:
    run.client.delete(run.keys.rollouts)


def overwrite_stream(run: Run) -> None:
    run.client.set(run.keys.rollouts, "not a stream")


def remake_stream_at_once(run: Run) -> None:
    """As the loop's reader does, before the keeper has looked; an actor pushes right away."""
    run.client.delete(run.keys.rollouts)
    run.leadership.bookkeeper.restore_stream()
    add(run.client, run.keys, make_entry(seq=6))


def remake_stream_and_outgrow_it(run: Run) -> None:
    """The new stream counts further than the old one had, so its counter alone does not tell."""
    run.client.delete(run.keys.rollouts)
    run.leadership.bookkeeper.restore_stream()
    add(run.client, run.keys, *[make_entry(seq=seq) for seq in range(6, 13)])


def trim(run: Run) -> None:
    run.client.xtrim(run.keys.rollouts, maxlen=0, approximate=False)


def delete_one(run: Run) -> None:
    ((entry, _),) = cast(Any, run.client.xrange(run.keys.rollouts, count=1))
    run.client.xdel(run.keys.rollouts, entry)


LOSSES = [
    (flushall, {"lost": 3, "lost:reset": 3}),
    (delete_stream, {"lost": 3, "lost:reset": 3}),
    (overwrite_stream, {"lost": 3, "lost:reset": 3}),
    (remake_stream_at_once, {"lost": 3, "lost:reset": 3}),
    (remake_stream_and_outgrow_it, {"lost": 3, "lost:reset": 3}),
    (trim, {"lost": 3, "lost:unexplained": 3}),
    (delete_one, {"lost": 1, "lost:unexplained": 1}),
]


@pytest.mark.parametrize(("interfere", "expected"), LOSSES, ids=[loss[0].__name__ for loss in LOSSES])
def test_exactly_what_vanished_is_counted_as_lost(
    run: Run, interfere: Callable[[Run], None], expected: dict[str, int]
) -> None:
    interfere(run)
    run.tick_twice()
    ledger = ledger_of(run.client, run.keys)
    assert {name: n for name, n in ledger.items() if name.startswith("lost")} == expected
    assert imbalance(run.client, run.keys) == 0
    assert hash_of(run.client, run.keys.status)["imbalance"] == "0"


def test_the_status_shows_what_had_vanished_once(run: Run) -> None:
    trim(run)
    run.keeper.tick()
    assert hash_of(run.client, run.keys.status)["imbalance"] == "3"
    run.keeper.tick()
    assert hash_of(run.client, run.keys.status)["imbalance"] == "0"


def test_rollouts_settled_in_a_stream_that_vanished_before_the_keeper_looked_are_not_lost(run: Run) -> None:
    ids = add(run.client, run.keys, *[make_entry(seq=seq) for seq in (6, 7)])
    run.leadership.bookkeeper.settle([Settlement(entry, Outcome.TRAINED, steps=8) for entry in ids])
    run.client.delete(run.keys.rollouts)
    run.tick_twice()
    assert imbalance(run.client, run.keys) == 0
    assert ledger_of(run.client, run.keys)["trained"] == 4


def test_an_unknown_lower_count_in_the_ledger_is_corrected_from_memory(run: Run) -> None:
    run.client.hset(run.keys.ledger, "trained", "1")
    run.tick_twice()
    assert_healthy(run, version_before=1)


@pytest.mark.parametrize("field", ["trained", "stale", "lost:unexplained", "entries_before", "steps:trained"])
def test_a_higher_count_that_an_outsider_wrote_is_ignored(run: Run, field: str) -> None:
    before = ledger_of(run.client, run.keys)
    run.client.hset(run.keys.ledger, field, "99999999")
    run.keeper.tick()
    assert ledger_of(run.client, run.keys) == before
    assert_healthy(run, version_before=1)


def test_a_settle_whose_reply_was_lost_is_counted_once_even_if_the_keeper_audits_before_the_retry(
    run: Run,
) -> None:
    (entry,) = add(run.client, run.keys, make_entry(seq=6))
    writes = run.leadership.fence.writes
    settle = writes.settle
    answers: list[list[bool]] = []

    def unanswered_once(epoch: int, settlements: Sequence[Settlement]) -> list[bool]:
        if answers:
            run.keeper.tick()
        answers.append(settle(epoch, settlements))
        if len(answers) == 1:
            raise TransientError("connection reset")
        return answers[-1]

    writes.settle = unanswered_once  # type: ignore[method-assign]
    run.leadership.bookkeeper.settle([Settlement(entry, Outcome.TRAINED, steps=8)])
    assert answers == [[True], [False]]
    run.tick_twice()
    assert ledger_of(run.client, run.keys) == {"trained": 3, "steps:trained": 24}
    assert imbalance(run.client, run.keys) == 0


@pytest.mark.parametrize("field", ["trained", "stale", "steps:trained"])
def test_a_count_that_is_no_number_is_put_right(run: Run, field: str) -> None:
    run.client.hset(run.keys.ledger, field, "many")
    run.keeper.tick()
    (entry,) = add(run.client, run.keys, make_entry(seq=6))
    run.leadership.bookkeeper.settle([Settlement(entry, Outcome.STALE)])
    run.keeper.tick()
    assert ledger_of(run.client, run.keys) == {"trained": 2, "steps:trained": 16, "stale": 1}
    assert imbalance(run.client, run.keys) == 0


@pytest.mark.parametrize("field", ["blob", "sha256"])
def test_weights_that_do_not_match_their_checksum_are_published_again(run: Run, field: str) -> None:
    """Or an actor that joins while nothing is trained would wait for ever."""
    before = version_of(run.client, run.keys)
    stored = run.client.hstrlen(run.keys.weights, field)
    run.client.hset(run.keys.weights, field, "0" * integer(stored))
    run.tick_twice()
    assert_healthy(run, before)


def test_a_damaged_byte_of_large_weights_is_found_within_thirty_rounds(run: Run) -> None:
    """Their content is not read in every one, as that would keep the server busy."""
    run.leadership.publisher.publish({"policy.weight": np.zeros(5 * 2**18, np.float32)}, 0, 0, 0)
    version = version_of(run.client, run.keys)
    blob = cast(bytes, run.client.hget(run.keys.weights, "blob"))
    run.client.hset(run.keys.weights, "blob", b"\0" + blob[1:])
    for _ in range(30):
        run.keeper.tick()
    assert version_of(run.client, run.keys) == version + 1
    assert run.client.hget(run.keys.weights, "blob") != b"\0" + blob[1:]
    assert_healthy(run, version)


def test_a_version_above_the_learners_own_is_exceeded(run: Run) -> None:
    run.client.hset(run.keys.weights, "version", "1000")
    run.tick_twice()
    assert version_of(run.client, run.keys) == 1001
    assert_healthy(run, 1000)


def test_a_round_without_interference_changes_nothing_but_the_status(run: Run) -> None:
    before = version_of(run.client, run.keys)
    run.tick_twice()
    assert version_of(run.client, run.keys) == before
    assert "lost" not in ledger_of(run.client, run.keys)


def test_the_keeper_works_at_the_servers_memory_limit(run: Run) -> None:
    before = version_of(run.client, run.keys)
    run.client.delete(run.keys.weights, run.keys.spec, run.keys.ledger, run.keys.status)
    with memory_limit(run.client):
        run.tick_twice()
        assert_healthy(run, before)


def test_a_learner_that_starts_at_the_servers_memory_limit_drains_what_is_there(run: Run) -> None:
    with memory_limit(run.client):
        run.leadership.bookkeeper.restore_stream()
        reader = make_reader(run.client, run.keys, run.leadership)
        reader.consumer.claim_all()
        reader.poll_until(settled=4)


def test_the_lease_is_renewed_in_each_round(run: Run) -> None:
    run.client.pexpire(run.keys.lease, 500)
    run.keeper.tick()
    assert integer(run.client.pttl(run.keys.lease)) > 4000


def test_everything_is_back_after_a_restart_of_the_server(
    private_server: RedisServer, private_client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    leadership = lead(private_client, keys, stop)
    keeper = make_keeper(private_client, keys, leadership)
    add(private_client, keys, make_entry(seq=1))
    keeper.tick()
    version = leadership.publisher.version
    private_server.restart()
    with opened(private_server.url, "actor") as actor:
        keeper.tick()
        snapshot = RolloutProducer(actor, keys, stop).push(make_header(), b"x")
    assert snapshot is not None
    assert snapshot.weights is not None
    assert snapshot.weights.version > version
    keeper.tick()
    assert ledger_of(private_client, keys) == {"entries_before": 1, "lost": 1, "lost:reset": 1}
    assert imbalance(private_client, keys) == 0
