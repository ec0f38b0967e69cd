"""What each guarantee costs: microseconds of computing time a rollout, of client and server together.

Each part is timed alone, again and again on warm caches; in a running fleet it takes up to twice as long.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, cast

from dppo_redis.protocol.ledger import Outcome, Settlement
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.rollout import RolloutHeader, check_layout, check_values, validate
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.wire import checksum, decode_rollout, encode_rollout
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import FencedWrites
from dppo_redis.store.keys import CONSUMER, GROUP
from dppo_redis.store.pending import StreamEntry
from dppo_redis.store.rollout_stream import RolloutProducer, parse_header
from learner.intake.decoder import RolloutDecoder
from learner.intake.staleness import judge
from ops.bench.server import server_cpu_s
from ops.bench.transport.loads import Load, make_rollout
from ops.bench.transport.producer import KEYS

_LEAST_S = 0.05
_ROUNDS = 4  # of entries settled in a sample of settling


def measure_parts(client: Client, load: Load, repeats: int, least_s: float = _LEAST_S) -> dict[str, float]:
    """Medians of `repeats` samples, in the order in which a rollout meets the parts.

    A sample takes at least `least_s` of computing time.
    """
    description = load.planned().description
    spec, rollout = description.spec, make_rollout(description.spec)
    payload = encode_rollout(rollout)
    crc = checksum(payload)
    header = RolloutHeader(0, "0" * 16, 1, 1, 1, 0, rollout.steps, crc, description.digest)
    fields = {name.encode(): str(value).encode() for name, value in vars(header).items()}
    entry = StreamEntry(b"1-1", fields | {b"payload": payload})
    decoder, decoded = RolloutDecoder(spec), decode_rollout(payload, spec)
    decoder.decode(payload)
    producer = RolloutProducer(client, KEYS, StopRequest())
    parts: dict[str, Callable[[], Any]] = {
        "actor: every number checked before sending": partial(validate, rollout, spec),
        "actor: packing (one copy)": partial(encode_rollout, rollout),
        "actor: checksum": partial(checksum, payload),
        "actor: pacing and weights, read alone": producer.read_pacing,
        "learner: header read, identity and staleness judged": partial(_judge, entry, LastSequenceNumbers()),
        "learner: checksum": partial(checksum, payload),
        "learner: decoding, known layout": partial(decoder.known, payload),
        "learner: decoding, parsed anew, dtypes and shapes": partial(_parse, payload, decoder),
        "learner: every number checked": partial(check_values, decoded, spec),
    }
    found = {name: median(_samples(client, part, repeats, least_s)) for name, part in parts.items()}
    writes = FencedWrites(client, KEYS)
    client.set(KEYS.epoch, 1)
    settles: dict[str, Callable[[list[bytes]], Any]] = {
        "learner: settling by script": lambda ids: writes.settle(
            1, [Settlement(i, Outcome.TRAINED, steps=rollout.steps) for i in ids]
        ),
        "bare loop: XACK and XDEL": partial(_acknowledge, client),
    }
    for name, settle in settles.items():
        found[name] = median(_settling(client, load, payload, settle) for _ in range(repeats))
    return found


def _judge(entry: StreamEntry, last: LastSequenceNumbers) -> None:
    header = parse_header(entry)
    last.is_duplicate(header)
    judge(header.epoch, header.update, lineage=Lineage(((1, 0),)), learner_update=0, max_staleness=4)


def _parse(payload: bytes, decoder: RolloutDecoder) -> None:
    check_layout(decode_rollout(payload, decoder.spec), decoder.spec)


def _samples(client: Client, part: Callable[[], Any], repeats: int, least_s: float) -> Iterator[float]:
    """Microseconds a call, of as many calls as take long enough to be measured."""
    count = 1
    for _ in range(repeats):
        while (took := _seconds(client, part, count)) < least_s:
            count *= 2
        yield 1e6 * took / count


def _seconds(client: Client, part: Callable[[], Any], count: int) -> float:
    began, server = time.process_time(), server_cpu_s(client)
    for _ in range(count):
        part()
    return time.process_time() - began + server_cpu_s(client) - server


def _settling(client: Client, load: Load, payload: bytes, settle: Callable[[list[bytes]], Any]) -> float:
    """Microseconds to settle a rollout, of a batch at once."""
    seconds = 0.0
    for _ in range(_ROUNDS):
        client.delete(KEYS.rollouts)
        client.xgroup_create(KEYS.rollouts, GROUP, id="0", mkstream=True)
        ids = [cast(bytes, client.xadd(KEYS.rollouts, {"payload": payload})) for _ in range(load.batch)]
        client.xreadgroup(GROUP, CONSUMER, {KEYS.rollouts: ">"}, count=load.batch)
        seconds += _seconds(client, partial(settle, ids), 1)
    return 1e6 * seconds / (_ROUNDS * load.batch)


def _acknowledge(client: Client, ids: list[bytes]) -> None:
    pipeline = client.pipeline(transaction=False)
    pipeline.xack(KEYS.rollouts, GROUP, *ids)
    pipeline.xdel(KEYS.rollouts, *ids)
    pipeline.execute()
