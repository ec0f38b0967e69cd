"""One stream for all actors against a stream for each actor.

The article avoids contention by a queue for each actor, which the learner polls. Three ways are compared on
one server, with the same commands for a rollout (XADD, XREADGROUP, XACK, XDEL): one stream; a stream for
each actor, read in turn; a stream for each actor, all read by one command. The product has the first; the
others exist only here. Each actor is a thread with a connection of its own, in one of two processes. First
all push as fast as they can, then at a fixed rate, where the time from sending to receiving is measured.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, median, quantiles
from typing import Any, cast

from dppo_redis.store.client import Client
from ops.bench.article.findings import Finding
from ops.bench.article.stream_producers import PRODUCERS, Order, producers
from ops.bench.rounds import in_rounds, shown
from ops.bench.server import own_server, server_cpu_s

REPEATS = 5
ACTORS = (2, 8, 64)
WAYS = ("one stream", "a stream each, in turn", "a stream each, one command")
PUSHED = 1280  # rollouts of 82 KB, as fast as they can
RATE, PACED = 200.0, 256  # rollouts per second, and how many
_AT_ONCE = 32  # entries of a read
_IDLE_S = 0.001  # after a round over all streams that found nothing
_GROUP, _CONSUMER = "learners", "bench"
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Sample:
    """One way with one number of actors."""

    per_s: float  # rollouts, as fast as they can
    busy_us: float  # computing time of learner and server for a rollout, meanwhile
    fairness: float  # of the rollouts in the first half: the fewest of an actor by the mean
    p50_ms: float  # from sending to receiving, at the fixed rate
    p99_ms: float
    cpu_us: float  # computing time of learner and server for a rollout, meanwhile


def measure(repeats: int) -> Finding:
    """Measure all ways and numbers of actors in rounds."""
    with own_server() as (client, url), producers(url):
        kinds: dict[str, Callable[[int], Sample]] = {
            f"{actors} actors, {way}": partial(_sample, client, way, actors)
            for actors in ACTORS
            for way in WAYS
        }
        found = in_rounds(kinds, repeats)
    rows = [[name, *_cells(samples)] for name, samples in found.items()]
    ratios: dict[str, list[float]] = {}
    for actors in ACTORS:
        base = found[f"{actors} actors, {WAYS[0]}"]
        for way in WAYS[1:]:
            pairs = list(zip(found[f"{actors} actors, {way}"], base, strict=True))
            name = f"{way} by one stream, {actors} actors"
            ratios[f"rollouts/s, {name}"] = [own.per_s / one.per_s for own, one in pairs]
            ratios[f"computing time at a fixed rate, {name}"] = [
                own.cpu_us / one.cpu_us for own, one in pairs
            ]
    header = ["", "rollouts/s", "us each", "fewest by mean", "p50, ms", "p99, ms", "us each, fixed rate"]
    samples = {name: [asdict(sample) for sample in values] for name, values in found.items()}
    return Finding(header, rows, ratios, samples)


def _cells(samples: Sequence[Sample]) -> list[str]:
    return [
        shown([one.per_s for one in samples], 0),
        f"{median(one.busy_us for one in samples):.0f}",
        f"{median(one.fairness for one in samples):.2f}",
        shown([one.p50_ms for one in samples], 1),
        shown([one.p99_ms for one in samples], 1),
        f"{median(one.cpu_us for one in samples):.0f}",
    ]


def _sample(client: Client, way: str, actors: int, _number: int) -> Sample:
    keys = _streams(client, way, actors)
    used, began = _cpu_s(client), _order(client, keys, PUSHED, interval_s=0.0)
    counts = Counter[int]()
    for number, (actor, _) in enumerate(_take(client, way, sorted(set(keys)), PUSHED)):
        counts[actor] += number < PUSHED // 2
    per_s = PUSHED / (time.monotonic() - began)
    busy_us = 1e6 * (_cpu_s(client) - used) / PUSHED
    fairness = min(counts[actor] for actor in range(actors)) / fmean(counts.values())
    keys = _streams(client, way, actors)
    _order(client, keys, PACED, interval_s=actors / RATE)
    used = _cpu_s(client)
    times = [1e3 * took_s for _, took_s in _take(client, way, sorted(set(keys)), PACED)]
    cpu_us = 1e6 * (_cpu_s(client) - used) / PACED
    return Sample(per_s, busy_us, fairness, median(times), quantiles(times, n=100)[98], cpu_us)


def _cpu_s(client: Client) -> float:
    return time.process_time() + server_cpu_s(client)


def _streams(client: Client, way: str, actors: int) -> list[str]:
    """The key of each actor's stream, made and empty."""
    client.flushall()
    keys = [f"bench:{0 if way == WAYS[0] else actor}" for actor in range(actors)]
    for key in set(keys):
        client.xgroup_create(key, _GROUP, id="0", mkstream=True)
    return keys


def _order(client: Client, keys: Sequence[str], rollouts: int, interval_s: float) -> float:
    """Let the actors push so many in all; returns the time at which they begin."""
    begin_at = time.monotonic() + 0.1
    for producer in range(PRODUCERS):
        own = {actor: key for actor, key in enumerate(keys) if actor % PRODUCERS == producer}
        order = Order(own, rollouts // len(keys), interval_s, begin_at)
        client.rpush(f"bench:orders:{producer}", json.dumps(asdict(order)))
    return begin_at


def _take(client: Client, way: str, keys: Sequence[str], rollouts: int) -> Iterator[tuple[int, float]]:
    """(actor, seconds since it was sent) of each rollout, in the order of its arrival."""
    deadline, taken = time.monotonic() + _LIMIT_S, 0
    read = _read_in_turn if way == WAYS[1] else _read_all
    while taken < rollouts:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{way}: {taken} of {rollouts} rollouts arrived")
        for key, entries in read(client, keys):
            now = time.monotonic()
            pipeline = client.pipeline(transaction=False)
            ids = [entry_id for entry_id, _ in entries]
            pipeline.xack(key, _GROUP, *ids)
            pipeline.xdel(key, *ids)
            pipeline.execute()
            taken += len(entries)
            for _, fields in entries:
                yield int(fields[b"actor"]), now - float(fields[b"sent"])


def _read_in_turn(client: Client, keys: Sequence[str]) -> Iterator[tuple[Any, list[Any]]]:
    found, at_once = False, max(1, _AT_ONCE // len(keys))
    for key in keys:
        reply = cast(list[Any], client.xreadgroup(_GROUP, _CONSUMER, {key: ">"}, count=at_once))
        found = found or bool(reply)
        yield from reply
    if not found:
        time.sleep(_IDLE_S)


def _read_all(client: Client, keys: Sequence[str]) -> Iterator[tuple[Any, list[Any]]]:
    """By one command, which waits; COUNT is of each stream."""
    at_once = max(1, _AT_ONCE // len(keys))
    streams: Any = dict.fromkeys(keys, ">")
    yield from cast(list[Any], client.xreadgroup(_GROUP, _CONSUMER, streams, count=at_once, block=200))
