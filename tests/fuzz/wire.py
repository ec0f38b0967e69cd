"""Inputs for the decoders; `python -m tests.fuzz.wire DIRECTORY` writes the seeds of the corpus."""

import contextlib
import hashlib
import sys
from pathlib import Path

from dppo_redis.errors import WireError
from dppo_redis.protocol.rollout import validate
from dppo_redis.protocol.spec import WIRE_SCHEMA
from dppo_redis.protocol.wire import decode_rollout, decode_weights, encode_rollout, encode_weights
from learner.intake.decoder import RolloutDecoder
from ops.bench.hostile import hostile
from ops.bench.hostile import make_rollout as make_bench_rollout
from tests.factories import make_rollout, make_spec, make_weights

CORPUS = Path(__file__).parents[1] / "corpus"
SPEC = make_spec(rollout_steps=2, hidden=(2,))
DECODER = RolloutDecoder(SPEC)
_SCHEMA = b"\xa6schema"


def try_payload(payload: bytes) -> None:
    """Decode or refuse, as rollout and as weights; anything else is a defect."""
    present = payload[:8] + bytes([WIRE_SCHEMA]) + payload[9:]
    for candidate in {payload, present if payload[1:8] == _SCHEMA else payload}:  # older releases' too
        with contextlib.suppress(WireError):
            validate(decode_rollout(candidate, SPEC), SPEC)
        with contextlib.suppress(WireError):
            DECODER.decode(candidate)
        with contextlib.suppress(WireError):
            decode_weights(candidate)


def seeds() -> list[bytes]:
    """Good messages, and one of each kind of damage."""
    good = [
        encode_rollout(make_rollout(SPEC, count=1, terminated=[(0, 0)])),
        encode_rollout(make_rollout(SPEC, count=1)),
        encode_weights(make_weights(SPEC)),
    ]
    return [*good, *hostile(make_bench_rollout(make_spec(rollout_steps=1, observation_size=4))).values()]


for _good in seeds()[:2]:
    DECODER.decode(_good)  # it has seen the layouts that fuzzing begins with


def corpus() -> list[Path]:
    """The inputs that are kept: seeds, and what fuzzing has found."""
    return sorted(CORPUS.glob("*.bin"))


def _write_seeds(directory: Path) -> None:
    for payload in seeds():
        (directory / f"{hashlib.sha256(payload).hexdigest()[:16]}.bin").write_bytes(payload[:2048])


if __name__ == "__main__":
    _write_seeds(Path(sys.argv[1]))
