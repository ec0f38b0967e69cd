"""Every fault that can be done to a fleet. Each function injects one and returns when it is over.

They stand for the rows of the failure matrix that need one machine. What is waited for afterwards,
and what is checked at the end, is not theirs to know.
"""

import random
import secrets
import signal
import time
from collections.abc import Callable
from typing import Any, cast

from dppo_redis.store.keys import GROUP
from learner.leadership.lease import LEASE_TTL_S
from tests.chaos.fleet import Fleet, signal_process, stopped, wait_for
from tests.chaos.poison import poisoned
from tests.chaos.proxy import Weather
from tests.e2e.support import EVALUATOR, SUPERVISORD

Fault = Callable[[Fleet, random.Random], None]
_AN_HOUR_S = 3600


# Processes


def kill_an_actor(fleet: Fleet, rng: random.Random) -> None:
    signal_process(fleet.actor(rng.randrange(fleet.actors)), signal.SIGKILL)


def kill_all_actors(fleet: Fleet, _rng: random.Random) -> None:
    for pid in [fleet.actor(slot) for slot in range(fleet.actors)]:
        signal_process(pid, signal.SIGKILL)


def kill_the_learner(fleet: Fleet, _rng: random.Random) -> None:
    signal_process(fleet.learner(), signal.SIGKILL)


def kill_the_evaluator(fleet: Fleet, _rng: random.Random) -> None:
    signal_process(fleet.pid(*EVALUATOR), signal.SIGKILL)


def kill_supervisord(fleet: Fleet, _rng: random.Random) -> None:
    """The command notices, ends everything and gives up; then somebody resumes."""
    began = time.time()
    signal_process(fleet.pid(*SUPERVISORD), signal.SIGKILL)
    fleet.wait_until_ended()  # and it deletes its stream, at some moment since
    fleet.note_removal(None, resets=True, since=began)
    fleet.resume()


def kill_the_learner_and_supervisord(fleet: Fleet, rng: random.Random) -> None:
    """Nobody hands the lease back: it has to run out, whatever the command does at its end."""
    kill_the_learner(fleet, rng)
    kill_supervisord(fleet, rng)


def kill_the_command(fleet: Fleet, _rng: random.Random) -> None:
    signal_process(fleet.command.process.pid, signal.SIGKILL)
    fleet.wait_until_ended()
    fleet.resume()


def stop_an_actor(fleet: Fleet, rng: random.Random) -> None:
    with stopped(fleet.actor(rng.randrange(fleet.actors))):
        time.sleep(rng.uniform(1, 6))


def stop_the_learner(fleet: Fleet, rng: random.Random) -> None:
    """For less than its lease, or for longer; nobody takes over."""
    with stopped(fleet.learner()):
        time.sleep(rng.choice([2.0, LEASE_TTL_S + 1]))


def stop_the_evaluator(fleet: Fleet, rng: random.Random) -> None:
    with stopped(fleet.pid(*EVALUATOR)):
        time.sleep(rng.uniform(1, 4))


def stop_supervisord(fleet: Fleet, rng: random.Random) -> None:
    with stopped(fleet.pid(*SUPERVISORD)):
        time.sleep(rng.uniform(1, 4))


def take_over_from_a_stopped_learner(fleet: Fleet, _rng: random.Random) -> None:
    """A second learner takes over; the first one wakes, is fenced, and leads again when that one has left."""
    first = fleet.learner()
    with fleet.second_learner() as second:
        with stopped(first):
            before = fleet.number(fleet.keys.weights, "epoch")
            wait_for(lambda: fleet.number(fleet.keys.weights, "epoch") > before, "the second one leads")
            time.sleep(1.0)
        wait_for(lambda: fleet.learner() != first, "the first one has ended")
        second.stop()


# The server


def kill_the_server(fleet: Fleet, rng: random.Random) -> None:
    """It comes back empty."""
    fleet.server.kill()
    fleet.note_removal(None, resets=True)
    time.sleep(rng.uniform(0, 3))
    fleet.server.start()


def end_the_server(fleet: Fleet, rng: random.Random) -> None:
    """Cleanly; it persists nothing, so it comes back empty, too."""
    signal_process(fleet.server.pid, signal.SIGTERM)
    time.sleep(rng.uniform(0.2, 2))
    kill_the_server(fleet, rng)


def stop_the_server(fleet: Fleet, rng: random.Random) -> None:
    """For less than the socket timeout, or for longer."""
    with stopped(fleet.server.pid):
        time.sleep(rng.choice([2.0, 6.0]))


def fill_the_servers_memory(fleet: Fleet, rng: random.Random) -> None:
    limit = cast(dict[str, str], fleet.client.config_get("maxmemory"))["maxmemory"]
    fleet.client.config_set("maxmemory", 1)
    try:
        time.sleep(rng.uniform(2, 5))
    finally:
        fleet.client.config_set("maxmemory", limit)


def flush_everything(fleet: Fleet, _rng: random.Random) -> None:
    _remove(fleet, lambda pipeline: pipeline.flushall())


def delete_a_key(fleet: Fleet, rng: random.Random) -> None:
    key = rng.choice(_keys(fleet))
    _remove_key(fleet, key, lambda pipeline: pipeline.delete(key))


def overwrite_a_key(fleet: Fleet, rng: random.Random) -> None:
    """With a type that no key of a run has."""
    key = rng.choice(_keys(fleet))
    _remove_key(fleet, key, lambda pipeline: pipeline.delete(key).sadd(key, "junk"))


def damage_the_weights(fleet: Fleet, rng: random.Random) -> None:
    """One byte of the blob."""
    fleet.client.hset(fleet.keys.weights, "blob", rng.randbytes(1000))


def delete_the_stream(fleet: Fleet, _rng: random.Random) -> None:
    _remove(fleet, lambda pipeline: pipeline.delete(fleet.keys.rollouts))


def trim_the_stream(fleet: Fleet, rng: random.Random) -> None:
    left = rng.choice([0, 0, 1])
    trimmed = fleet.client.xtrim(fleet.keys.rollouts, maxlen=left, approximate=False)
    fleet.note_removal(trimmed, resets=False)


def destroy_the_group(fleet: Fleet, _rng: random.Random) -> None:
    fleet.client.xgroup_destroy(fleet.keys.rollouts, GROUP)


def _keys(fleet: Fleet) -> list[str]:
    return [*fleet.keys.types(), fleet.keys.actor(0)]


def _remove_key(fleet: Fleet, key: str, removal: Callable[[Any], object]) -> None:
    """Only what is removed of the stream is told."""
    if key == fleet.keys.rollouts:
        _remove(fleet, removal)
    else:
        pipeline = fleet.client.pipeline()
        removal(pipeline)
        pipeline.execute()


def _remove(fleet: Fleet, removal: Callable[[Any], object]) -> None:
    """Do it in the same moment in which the entries are counted."""
    pipeline = fleet.client.pipeline()
    pipeline.xlen(fleet.keys.rollouts)
    removal(pipeline)
    fleet.note_removal(int(pipeline.execute()[0]), resets=True)


# The network


def reset_connections(fleet: Fleet, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 10)):
        fleet.proxy.reset(rng.choice(["", "actor", "learner"]))
        time.sleep(rng.uniform(0, 0.3))


def delay_everything(fleet: Fleet, rng: random.Random) -> None:
    _bad_weather(fleet, Weather(delay_s=rng.uniform(0.02, 0.3)), rng.uniform(2, 5))


def narrow_the_link(fleet: Fleet, rng: random.Random) -> None:
    role = rng.choice(["", "actor", "learner"])
    _bad_weather(fleet, Weather(role, bytes_per_s=rng.uniform(20_000, 200_000)), rng.uniform(2, 5))


def open_a_hole(fleet: Fleet, rng: random.Random) -> None:
    """For all, or for one side alone; for less than the socket timeout, or for longer."""
    role = rng.choice(["", "actor", "learner", "keeper"])
    _bad_weather(fleet, Weather(role, hole=True), rng.choice([2.0, 7.0]))


def _bad_weather(fleet: Fleet, weather: Weather, seconds: float) -> None:
    fleet.proxy.set_weather(weather)
    try:
        time.sleep(seconds)
    finally:
        fleet.proxy.set_weather(Weather())


def lose_a_push_reply(fleet: Fleet, rng: random.Random) -> None:
    _lose_replies(fleet, "actor", b"XADD", rng.randrange(1, 5))


def lose_a_settle_reply(fleet: Fleet, _rng: random.Random) -> None:
    _lose_replies(fleet, "learner", b"\r\ntrained\r\n$0\r\n", 1)


def lose_a_publish_reply(fleet: Fleet, _rng: random.Random) -> None:
    _lose_replies(fleet, "learner", b"\r\nblob\r\n$", 1)


def lose_a_read_reply(fleet: Fleet, _rng: random.Random) -> None:
    _lose_replies(fleet, "learner", b"XREADGROUP", 1)


def _lose_replies(fleet: Fleet, role: str, marker: bytes, times: int) -> None:
    for _ in range(times):
        before = fleet.proxy.replies_lost
        fleet.proxy.lose_reply(role, marker)
        wait_for(lambda: fleet.proxy.replies_lost > before, f"a reply to {marker!r} is lost")  # noqa: B023


# The disk


def fill_the_disk(fleet: Fleet, rng: random.Random) -> None:
    filler = fleet.fill_disk()
    try:
        time.sleep(rng.uniform(2, 5))
    finally:
        filler.unlink()


# Entries of somebody else


def push_poison(fleet: Fleet, rng: random.Random) -> None:
    _, entry = fleet.first_entry()
    for fields in poisoned(entry, rng):
        fleet.event_log.write("injected", boot=fields.get(b"boot", b""), seq=0, what="poison")
        fleet.client.xadd(fleet.keys.rollouts, cast(Any, fields), nomkstream=True)


def push_duplicates(fleet: Fleet, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 6)):
        _, entry = fleet.first_entry()
        for _ in range(2):
            fleet.client.xadd(fleet.keys.rollouts, cast(Any, entry), nomkstream=True)


def push_what_is_too_old(fleet: Fleet, _rng: random.Random) -> None:
    """A good rollout that comes under a new name when the limit has passed."""
    _, entry = fleet.first_entry()
    limit = fleet.number(fleet.keys.status, "staleness_limit")
    old = fleet.update + limit + 1
    wait_for(lambda: fleet.update > old, "it is too old")
    boot = secrets.token_hex(8)
    weights = {name: int(entry[name.encode()]) for name in ("epoch", "version", "update")}
    fleet.event_log.write("injected", boot=boot, seq=int(entry[b"seq"]), what="too old", **weights)
    fleet.client.xadd(fleet.keys.rollouts, cast(Any, {**entry, b"boot": boot.encode()}), nomkstream=True)


def set_the_servers_clock_back(fleet: Fleet, _rng: random.Random) -> None:
    """An entry from an hour ahead: from now on the server's clock is behind its last id."""
    _, entry = fleet.first_entry()
    later = f"{int(1000 * (time.time() + _AN_HOUR_S))}-0"
    fleet.client.xadd(fleet.keys.rollouts, cast(Any, entry), id=later, nomkstream=True)


FAULTS: tuple[Fault, ...] = (
    kill_an_actor, kill_all_actors, kill_the_learner, kill_the_evaluator, kill_supervisord,
    kill_the_learner_and_supervisord, kill_the_command,
    stop_an_actor, stop_the_learner, stop_the_evaluator, stop_supervisord, take_over_from_a_stopped_learner,
    kill_the_server, end_the_server, stop_the_server, fill_the_servers_memory, flush_everything,
    delete_a_key, overwrite_a_key, damage_the_weights, delete_the_stream, trim_the_stream, destroy_the_group,
    reset_connections, delay_everything, narrow_the_link, open_a_hole,
    lose_a_push_reply, lose_a_settle_reply, lose_a_publish_reply, lose_a_read_reply, fill_the_disk,
    push_poison, push_duplicates, push_what_is_too_old, set_the_servers_clock_back,
)  # fmt: skip
