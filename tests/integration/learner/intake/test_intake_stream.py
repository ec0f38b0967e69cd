"""The outcome of each entry of a real stream, and its count in the ledger."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.spec import WIRE_SCHEMA
from dppo_redis.protocol.wire import encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import GROUP, RunKeys
from dppo_redis.store.run_store import QUARANTINE_BYTES
from learner.intake.intake import AcceptedRollout
from learner.leadership.leadership import Leadership
from learner.leadership.reserved_versions import ReservedVersions
from tests.conftest import memory_limit
from tests.factories import make_rollout, make_spec
from tests.integration.learner_side import (
    SPEC,
    STEPS,
    Reader,
    add,
    die,
    in_background,
    lead,
    make_entry,
    make_keeper,
    make_reader,
    publish,
    seqs,
    with_payload,
)
from tests.integration.looking import hash_of, imbalance, integer, ledger_of, pending

Fields = dict[Any, Any]
HUGE = 2**63 - 1


@pytest.fixture
def leadership(client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    return lead(client, keys, stop)


@pytest.fixture
def reader(client: Client, keys: RunKeys, leadership: Leadership) -> Reader:
    return make_reader(client, keys, leadership)


def settle_trained(reader: Reader, batch: list[AcceptedRollout]) -> None:
    reader.leadership.bookkeeper.settle(
        [Settlement(a.entry_id, Outcome.TRAINED, steps=a.header.steps) for a in batch]
    )
    reader.intake.settled(batch)


def quarantined(client: Client, keys: RunKeys) -> list[dict[str, bytes]]:
    found = cast(list[tuple[bytes, dict[bytes, bytes]]], client.xrange(keys.quarantine))
    return [{name.decode(errors="replace"): value for name, value in entry.items()} for _, entry in found]


def without(name: str) -> Fields:
    return {key: value for key, value in make_entry().items() if key != name}


def wrong_dtype() -> Fields:
    return make_entry(make_rollout(SPEC, rewards=np.zeros((4, 2), np.float64)))


def nan_reward() -> Fields:
    rewards = np.zeros((4, 2), np.float32)
    rewards[2, 1] = np.nan
    return make_entry(make_rollout(SPEC, rewards=rewards))


def nan_final_observation() -> Fields:
    final = np.full((1, 2), np.nan, np.float32)
    return make_entry(make_rollout(SPEC, terminated=[(1, 1)], final_observations=final))


def action_out_of_range() -> Fields:
    return make_entry(make_rollout(SPEC, actions=np.full((4, 2), 2)))


def probability_above_1() -> Fields:
    return make_entry(make_rollout(SPEC, log_probs=np.full((4, 2), 0.5, np.float32)))


def wrong_length() -> Fields:
    return make_entry(make_rollout(make_spec(rollout_steps=5)), steps=10)


def end_of_no_step() -> Fields:
    return make_entry(make_rollout(SPEC, terminated=[(1, 1)], invalid=[(1, 1)]))


def nothing_valid() -> Fields:
    return make_entry(make_rollout(SPEC, invalid=[(t, n) for t in range(4) for n in range(2)]))


def another_schema() -> Fields:
    payload = encode_rollout(make_rollout(SPEC))
    ours, other = (b"\xa6schema" + bytes([schema]) for schema in (WIRE_SCHEMA, WIRE_SCHEMA + 1))
    assert ours in payload
    return with_payload(payload.replace(ours, other))


def objects() -> Fields:
    payload = encode_rollout(make_rollout(SPEC))
    return with_payload(payload.replace(b"\xa2f4", b"\xa2O8"))


def cut_off() -> Fields:
    return with_payload(encode_rollout(make_rollout(SPEC))[:-1])


BAD: dict[str, tuple[Callable[[], Fields], str]] = {
    "no field of ours": (lambda: {"hello": "world"}, "header"),
    "no payload": (lambda: without("payload"), "header"),
    "no seq": (lambda: without("seq"), "header"),
    "random bytes": (lambda: with_payload(b"\xc1\x00\xff" * 100), "undecodable"),
    "an empty payload": (lambda: with_payload(b""), "undecodable"),
    "a payload that was cut off": (cut_off, "undecodable"),
    "no message of ours": (lambda: with_payload(b"\x05"), "schema"),
    "another schema": (another_schema, "schema"),
    "a wrong crc": (lambda: make_entry(crc=1), "crc"),
    "another run's spec": (lambda: make_entry() | {"spec": "0123456789abcdef"}, "spec"),
    "a wrong length": (wrong_length, "shape"),
    "a wrong dtype": (wrong_dtype, "dtype"),
    "an array of objects": (objects, "dtype"),
    "a NaN reward": (nan_reward, "nonfinite"),
    "a NaN in a final observation only": (nan_final_observation, "nonfinite"),
    "an action out of range": (action_out_of_range, "action"),
    "a probability above 1": (probability_above_1, "log_prob"),
    "an end of no step": (end_of_no_step, "flags"),
    "no valid row": (nothing_valid, "header"),
    "more steps claimed than there are": (lambda: make_entry(steps=STEPS + 1), "header"),
    "absurd steps claimed": (lambda: make_entry(steps=HUGE), "header"),
    "a number of 20 digits": (lambda: make_entry() | {"seq": "1" * 20}, "header"),
    "a number above 63 bits": (lambda: make_entry() | {"update": str(2**63)}, "header"),
    "a negative number": (lambda: make_entry() | {"update": "-1"}, "header"),
    "a number in words": (lambda: make_entry() | {"epoch": "one"}, "header"),
    "an empty number": (lambda: make_entry() | {"version": ""}, "header"),
    "a fraction": (lambda: make_entry() | {"steps": "8.0"}, "header"),
    "a number in other digits": (lambda: make_entry() | {"seq": "٣"}, "header"),
    "a boot that is no id": (lambda: make_entry() | {"boot": "x"}, "header"),
    "a huge boot": (lambda: make_entry() | {"boot": "0" * 100_000}, "header"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_entry_is_refused_counted_and_kept_between_two_good_ones(
    client: Client, keys: RunKeys, reader: Reader, name: str
) -> None:
    bad, reason = BAD[name]
    good = [make_entry(seq=seq, boot="a" * 16) for seq in (1, 2)]
    add(client, keys, good[0], bad(), good[1])
    batch = reader.poll_until(settled=3)
    assert seqs(batch) == [1, 2]
    assert ledger_of(client, keys) == {"refused": 1, f"refused:{reason}": 1}
    (kept,) = quarantined(client, keys)
    assert kept["reason"].decode() == reason
    assert all(len(value) <= max(500, QUARANTINE_BYTES) for value in kept.values())
    settle_trained(reader, batch)
    assert imbalance(client, keys) == 0
    assert pending(client, keys) == 0


@pytest.mark.parametrize(
    "header",
    [{"epoch": 99}, {"epoch": 0}, {"epoch": HUGE}, {"update": 6}, {"update": HUGE}],
    ids=["later epoch", "no epoch", "huge epoch", "later update", "huge update"],
)
def test_a_rollout_of_weights_that_are_no_ancestors_is_refused(
    client: Client, keys: RunKeys, reader: Reader, header: dict[str, Any]
) -> None:
    add(client, keys, make_entry(seq=1, **header))
    reader.poll_until(settled=1, update=5)
    reason = "lost_lineage" if "epoch" in header else "from_the_future"
    assert ledger_of(client, keys) == {"refused": 1, f"refused:{reason}": 1, "steps:refused": STEPS}


@pytest.mark.parametrize("version", [0, 2, HUGE])
def test_a_rollout_of_a_version_that_was_never_published_is_refused(
    client: Client, keys: RunKeys, leadership: Leadership, version: int
) -> None:
    reader = make_reader(client, keys, leadership, batch_steps=STEPS)
    add(client, keys, make_entry(seq=1, version=version), make_entry(seq=2, version=1))
    assert seqs(reader.poll_until(settled=2)) == [2]
    assert ledger_of(client, keys) == {"refused": 1, "refused:version": 1, "steps:refused": STEPS}
    publish(leadership)
    add(client, keys, make_entry(seq=3, version=version))
    assert seqs(reader.poll() or []) == ([3] if version == 2 else [])


def test_rollouts_of_weights_that_were_put_back_or_belong_to_a_predecessor_are_trained(
    client: Client, keys: RunKeys, stop: StopRequest, tmp_path: Path
) -> None:
    """Its 100 reserved versions, too: it may have used them before it was killed."""
    reserved = tmp_path / "used.json"
    first = lead(client, keys, stop, reserved=ReservedVersions(reserved))
    die(client, keys)
    second = lead(client, keys, stop, owner="learner-2", known_epoch=1, reserved=ReservedVersions(reserved))
    assert (first.publisher.version, second.publisher.version) == (1, 101)
    second.lease.lineage = Lineage(((1, 0), (2, 0)))  # as a checkpoint would have it
    client.delete(keys.weights)
    second.publisher.heal()
    reader = make_reader(client, keys, second, batch_steps=4 * STEPS)
    identities = [(1, 1), (1, 100), (2, 101), (2, 102), (2, 100), (1, 101), (2, 103)]
    entries = [make_entry(seq=n, epoch=e, version=v) for n, (e, v) in enumerate(identities, 1)]
    add(client, keys, *entries)
    assert seqs(reader.poll_until(settled=7)) == [1, 2, 3, 4]
    assert ledger_of(client, keys)["refused:version"] == 3


@pytest.mark.parametrize("header", [{"epoch": 99}, {"update": 0}], ids=["lost lineage", "stale"])
def test_absurd_steps_of_a_rollout_that_is_dropped_unopened_do_not_end_the_learner(
    client: Client, keys: RunKeys, reader: Reader, header: dict[str, Any]
) -> None:
    """Nobody has counted the rows of what is dropped from its header alone."""
    add(client, keys, *[make_entry(seq=seq, steps=HUGE, **header) for seq in (1, 2)])
    reader.poll_until(settled=2, update=9)
    assert reader.leadership.bookkeeper.ledger_audit.ledger.settled == 2
    assert imbalance(client, keys) == 0


def test_staleness_at_the_limit_is_trained_and_beyond_it_is_dropped(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    add(client, keys, *[make_entry(seq=update, update=update) for update in (5, 6, 7)])
    batch = reader.poll_until(settled=3, update=10)
    assert [a.header.update for a in batch] == [6, 7]
    assert ledger_of(client, keys) == {"stale": 1, "steps:stale": STEPS}


def test_a_rollout_sent_twice_is_taken_once(client: Client, keys: RunKeys, reader: Reader) -> None:
    entries = [make_entry(seq=seq) for seq in (1, 1, 2)]
    add(client, keys, *entries)
    batch = reader.poll_until(settled=3)
    assert seqs(batch) == [1, 2]
    assert ledger_of(client, keys) == {"duplicate": 1, "steps:duplicate": STEPS}


def test_a_duplicate_of_a_rollout_that_was_trained_before_is_recognised(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    add(client, keys, make_entry(seq=1), make_entry(seq=2))
    settle_trained(reader, reader.poll_until(settled=2))
    add(client, keys, make_entry(seq=2), make_entry(seq=3), make_entry(seq=4))
    assert seqs(reader.poll_until(settled=5)) == [3, 4]
    assert ledger_of(client, keys)["duplicate"] == 1


def test_a_restarted_actor_begins_again_with_seq_1(client: Client, keys: RunKeys, reader: Reader) -> None:
    add(client, keys, make_entry(seq=1, boot="a" * 16), make_entry(seq=1, boot="b" * 16))
    assert len(reader.poll_until(settled=2)) == 2


def test_rollouts_of_the_abandoned_end_of_an_earlier_epoch_are_refused(
    client: Client, keys: RunKeys, stop: StopRequest
) -> None:
    first = lead(client, keys, stop)
    first.lease.release()
    second = lead(client, keys, stop, owner="learner-2", known_epoch=1, update=40)
    second.lease.lineage = replace(second.lease.lineage, starts=((1, 0), (2, 40)))
    reader = make_reader(client, keys, second)
    add(client, keys, *[make_entry(seq=update, epoch=1, update=update) for update in (40, 41)])
    add(client, keys, make_entry(seq=1, boot="b" * 16, epoch=2, update=40))
    batch = reader.poll_until(settled=3, update=41)
    assert [(a.header.epoch, a.header.update) for a in batch] == [(1, 40), (2, 40)]
    assert ledger_of(client, keys)["refused:lost_lineage"] == 1


def test_an_entry_in_hand_that_is_delivered_again_is_ignored(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    add(client, keys, make_entry(seq=1))
    assert reader.poll() is None
    assert reader.poll() is None
    client.xgroup_destroy(keys.rollouts, GROUP)
    add(client, keys, make_entry(seq=2))
    batch = reader.poll_until(settled=2)
    assert seqs(batch) == [1, 2]
    settle_trained(reader, batch)
    assert ledger_of(client, keys) == {"trained": 2, "steps:trained": 2 * STEPS}
    assert imbalance(client, keys) == 0


def test_entries_trimmed_in_hand_of_a_dead_learner_are_lost_once_and_not_trained(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    keeper = make_keeper(client, keys, leadership)
    keeper.tick()
    dead = make_reader(client, keys, leadership, batch_steps=100 * STEPS)
    add(client, keys, *[make_entry(seq=seq) for seq in range(1, 11)])
    for _ in range(3):
        dead.poll()
    assert pending(client, keys) == 10
    client.xtrim(keys.rollouts, maxlen=0, approximate=False)
    reader = make_reader(client, keys, leadership)
    add(client, keys, make_entry(seq=11), make_entry(seq=12))
    batch = reader.poll_until(settled=2)
    assert seqs(batch) == [11, 12]
    settle_trained(reader, batch)
    keeper.tick()
    assert pending(client, keys) == 0
    assert ledger_of(client, keys) == {
        "trained": 2,
        "steps:trained": 2 * STEPS,
        "lost": 10,
        "lost:unexplained": 10,
    }
    assert imbalance(client, keys) == 0


def test_entries_a_dead_learner_had_read_are_trained_by_the_next(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    dead = make_reader(client, keys, leadership, batch_steps=100 * STEPS)
    add(client, keys, *[make_entry(seq=seq) for seq in range(1, 21)])
    for _ in range(3):
        dead.poll()
    reader = make_reader(client, keys, leadership, batch_steps=20 * STEPS)
    reader.consumer.claim_all()
    batch = reader.poll_until(settled=20)
    assert seqs(batch) == list(range(1, 21))
    settle_trained(reader, batch)
    assert pending(client, keys) == 0


def test_rollouts_in_hand_when_a_checkpoint_was_saved_are_trained_by_the_learner_that_resumes_from_it(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    dead = make_reader(client, keys, leadership, batch_steps=3 * STEPS)
    add(client, keys, make_entry(seq=1), make_entry(seq=2))
    assert dead.poll() is None
    saved = dead.intake.settled_sequence_numbers().to_dict()
    reader = make_reader(client, keys, leadership)
    reader.intake.last_sequence_numbers = LastSequenceNumbers(saved)
    assert seqs(reader.poll_until(settled=2)) == [1, 2]


def test_a_poll_reads_no_more_of_a_large_backlog_than_the_batch_needs(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    pipeline = client.pipeline(transaction=False)
    for seq in range(1, 2001):
        pipeline.xadd(keys.rollouts, make_entry(seq=seq))
    pipeline.execute()
    reader.poll()
    assert seqs(reader.poll() or []) == [1, 2]
    assert pending(client, keys) == 2
    assert integer(client.xlen(keys.rollouts)) == 2000


def test_a_memory_of_settled_entries_does_not_fill_the_server(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    for first in range(1, 100, 2):
        add(client, keys, make_entry(seq=first), make_entry(seq=first + 1))
        settle_trained(reader, reader.poll_until(settled=first + 1))
    assert integer(client.xlen(keys.rollouts)) == 0
    assert integer(client.memory_usage(keys.rollouts)) < 10_000


def test_a_huge_field_name_is_not_copied_into_the_quarantine(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    add(client, keys, {"x" * 1_000_000: "1"})
    reader.poll_until(settled=1)
    (kept,) = quarantined(client, keys)
    assert max(len(name) for name in kept) < 1000


def test_an_entry_cannot_forge_its_own_reason(client: Client, keys: RunKeys, reader: Reader) -> None:
    add(client, keys, {"reason": "none at all", "entry": "0-0", "detail": "all is well"})
    reader.poll_until(settled=1)
    (kept,) = quarantined(client, keys)
    assert kept["reason"] == b"header"


def test_the_quarantine_is_bounded(client: Client, keys: RunKeys, reader: Reader) -> None:
    pipeline = client.pipeline(transaction=False)
    for _ in range(1500):
        pipeline.xadd(keys.rollouts, {"bad": "1"})
    pipeline.execute()
    reader.poll_until(settled=1500, most=2000)
    assert integer(client.xlen(keys.quarantine)) < 1200
    assert hash_of(client, keys.ledger)["refused:header"] == "1500"


def test_a_bad_entry_is_settled_at_the_servers_memory_limit(
    client: Client, keys: RunKeys, reader: Reader, stop: StopRequest
) -> None:
    add(client, keys, {"bad": "1"}, make_entry(seq=1), make_entry(seq=2))
    with memory_limit(client), in_background(lambda: reader.poll_until(settled=3), stop) as reading:
        assert seqs(reading.result(5)) == [1, 2]
    assert ledger_of(client, keys)["refused:header"] == 1


def test_skipped_entries_are_trained_in_a_run_that_is_never_idle(
    client: Client, keys: RunKeys, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that the learner looks there is something new, as with actors that are fast."""
    reader = make_reader(client, keys, leadership)
    reader.poll()
    add(client, keys, *[make_entry(seq=seq) for seq in range(1, 9)])
    client.xgroup_setid(keys.rollouts, GROUP, "$")
    trained: list[int] = []
    now = time.monotonic()
    for turn in range(20):
        monkeypatch.setattr("dppo_redis.service.logs.time.monotonic", partial(float, now + turn))
        add(
            client,
            keys,
            make_entry(boot="b" * 16, seq=2 * turn + 1),
            make_entry(boot="b" * 16, seq=2 * turn + 2),
        )
        batch = reader.poll() or []
        settle_trained(reader, batch)
        trained += [accepted.header.seq for accepted in batch if accepted.header.boot != "b" * 16]
    assert trained == list(range(1, 9))
    assert (pending(client, keys), imbalance(client, keys)) == (0, 0)
    assert ledger_of(client, keys) == {"trained": 40, "steps:trained": 40 * STEPS}


def test_a_batch_half_in_hand_is_filled_with_what_was_skipped_and_each_is_trained_once(
    client: Client, keys: RunKeys, leadership: Leadership
) -> None:
    reader = make_reader(client, keys, leadership, batch_steps=3 * STEPS)
    add(client, keys, make_entry(seq=1))
    assert reader.poll() is None
    assert reader.poll() is None
    assert reader.intake.gathered == 1
    add(client, keys, make_entry(seq=2), make_entry(seq=3))
    client.xgroup_setid(keys.rollouts, GROUP, "$")
    batch = reader.poll_until(settled=3)
    assert seqs(batch) == [1, 2, 3]
    settle_trained(reader, batch)
    assert (pending(client, keys), imbalance(client, keys)) == (0, 0)
    assert ledger_of(client, keys)["trained"] == 3
