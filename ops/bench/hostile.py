"""`dppo-redis bench hostile`: what broken payloads cost the learner.

First each kind of damage against a valid payload of the same size: time and memory of all that the
learner does with a payload. Then ten thousand of them, pushed to a real learner.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w

from dppo_redis.artefacts.config_file import to_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.environments.child import describe
from dppo_redis.errors import ExitStatus, WireError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import checksum, encode_rollout
from dppo_redis.store.client import Client, connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import RunStore
from learner.intake.decoder import RolloutDecoder
from ops.bench.arguments import BenchmarkParser
from ops.fleet.broker import embedded

ENVIRONMENTS = 8
SIZES = {"1 KB": 1 << 10, "16 KB": 1 << 14, "60 KB": 60_000, "1 MB": 1 << 20, "8 MB": 1 << 23}
COUNT = 10_000
_ROW_BYTES = 35  # of CartPole


def configuration(rollout_steps: int) -> RunConfig:
    """CartPole with rollouts of this length."""
    values = {
        "env_id": "CartPole-v1",
        "actors": 1,
        "envs_per_actor": ENVIRONMENTS,
        "rollout_steps": rollout_steps,
        "total_steps": 10**9,
    }
    return RunConfig.model_validate(values)


def make_rollout(spec: Spec) -> Rollout:
    """A valid rollout without an episode's end."""
    rng, rows = np.random.default_rng(0), (spec.rollout_steps, ENVIRONMENTS)
    no = np.zeros(rows, np.bool_)
    return Rollout(
        observations=rng.standard_normal((*rows, 4), dtype=np.float32),
        actions=rng.integers(0, 2, rows),
        log_probs=-np.abs(rng.standard_normal(rows, dtype=np.float32)),
        rewards=np.ones(rows, np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        final_observations=np.zeros((0, 4), np.float32),
        last_observations=np.zeros((ENVIRONMENTS, 4), np.float32),
        frames_before=np.zeros((ENVIRONMENTS, 0, 4), np.float32),
        memory=np.zeros((ENVIRONMENTS, 0), np.float32),
        discounted_returns=np.zeros(ENVIRONMENTS),
        episode_returns=np.zeros(0, np.float32),
        episode_lengths=np.zeros(0, np.int32),
    )


def take(payload: bytes, decoder: RolloutDecoder) -> None:
    """All that the intake does with a payload."""
    checksum(payload)
    decoder.decode(payload)


def hostile(rollout: Rollout, seed: int = 0) -> dict[str, bytes]:
    """Broken payloads about as large as the one of `rollout`, by what is wrong with them."""
    good = encode_rollout(rollout)
    size, rng = len(good), np.random.default_rng(seed)
    rewards, actions, valid = rollout.rewards.copy(), rollout.actions.copy(), rollout.valid.copy()
    rewards[-1, -1] = np.nan
    actions[-1, -1] = 2
    valid[-1, -1] = False
    ended = rollout.terminated.copy()
    ended[-1, -1] = True
    start = good[: good.index(b"\xa6arrays") + 7]
    nested = {
        "deep lists": b"\x91" * size,
        "deep maps": b"\x81\xa1a" * (size // 3),
        "lists of numbers": (b"\x98" + b"\x01" * 8) * (size // 9),
        "lists of lists": (b"\x98" + b"\x90" * 8) * (size // 9),
        "a wide list": b"\xdd" + size.to_bytes(4, "big") + b"\x01" * size,
        "a wide map": b"\xde"
        + (size // 5).to_bytes(2, "big")
        + b"".join(b"\xa3%03x\x01" % (i & 0xFFF) for i in range(size // 5))
        if size < 2**18
        else b"\xde\xff\xff" + b"\xa3abc\x01" * (size // 5),
        "a map as wide as may be": b"\xde\x00\x40"
        + b"".join(b"\xa2%02x\x93\xa2f4\x91\x00\xc4\x00" % i for i in range(64))
        + bytes(max(0, size - 700)),
        "many maps": (b"\x81\xa1a" + b"\x82\xa1a\x01\xa1b\x01") * (size // 10),
        "long names": (b"\x81\xd9\xff" + b"n" * 255) * (size // 258),
        "one name for all": b"\xde\x00\x40" + b"\xa1a\x01" * (size // 3),
        "extension types": b"\xdc\xff\xff" + b"\xd4\x05\x00" * (size // 3),
        "a lying length": b"\x81\xa1a\x93\xa2f4\x91\x01\xc6\x07\xff\xff\xff" + b"\x00" * size,
    }
    return {
        "random bytes": rng.bytes(size),
        "zeros": bytes(size),
        "cut off at the end": good[:-1],
        "something behind it": good + b"\x00",
        "a NaN in the last row": encode_rollout(replace(rollout, rewards=rewards)),
        "an action out of range in the last row": encode_rollout(replace(rollout, actions=actions)),
        "an end of no step": encode_rollout(replace(rollout, terminated=ended, valid=valid)),
        "another dtype": good.replace(b"\xa2f4", b"\xa2O8"),
        "another schema": good.replace(b"\xa6schema", b"\xa6schemb"),
        "flags of other bytes": good.replace(b"\x01" * 8, b"\x07" * 8),
        "one array of bytes": start + b"\x81\xa1a\x93\xa2u1\x91\xce%b\xc6%b" % (
            (size.to_bytes(4, "big"),) * 2
        ) + bytes(size),
        **{name: start + tail for name, tail in nested.items()},
        **{f"{name}, alone": tail for name, tail in nested.items()},
    }  # fmt: skip


def seconds_of(payload: bytes, decoder: RolloutDecoder, is_good: bool) -> float:
    """Best of several: the machine has other things to do."""
    best = float("inf")
    for _ in range(7):
        started = time.perf_counter()
        refused(payload, decoder, is_good)
        best = min(best, time.perf_counter() - started)
    return best


def refused(payload: bytes, decoder: RolloutDecoder, is_good: bool) -> None:
    """Take it; a broken payload has to be refused."""
    try:
        take(payload, decoder)
    except WireError:
        assert not is_good
    else:
        assert is_good, payload[:100]


def bytes_of(payload: bytes, decoder: RolloutDecoder, is_good: bool) -> int:
    """The most memory that was in use at one moment, the payload itself included."""
    refused(payload, decoder, is_good)
    tracemalloc.start()
    try:
        refused(payload, decoder, is_good)
        return len(payload) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def compare() -> None:
    """The worst kind of damage for each size."""
    print("| size | valid payload | slowest hostile one | time | largest hostile one | memory |")
    print("|---|---|---|---|---|---|")
    for name, size in SIZES.items():
        steps = max(1, size // (_ROW_BYTES * ENVIRONMENTS))
        spec = describe(configuration(steps)).spec
        rollout = make_rollout(spec)
        good = encode_rollout(rollout)
        decoder = RolloutDecoder(spec)
        good_s, good_bytes = seconds_of(good, decoder, True), bytes_of(good, decoder, True)
        broken = hostile(rollout)
        times = {kind: seconds_of(payload, decoder, False) for kind, payload in broken.items()}
        memory = {kind: bytes_of(payload, decoder, False) for kind, payload in broken.items()}
        slow, large = max(times, key=lambda k: times[k]), max(memory, key=lambda k: memory[k])
        print(
            f"| {name} | {1e6 * good_s:.0f} us, {good_bytes / 1024:.0f} KB | {slow} | "
            f"{1e6 * times[slow]:.0f} us, x {times[slow] / good_s:.2f} | {large} | "
            f"{memory[large] / 1024:.0f} KB, x {memory[large] / good_bytes:.2f} |"
        )


@contextmanager
def learner_of(config: RunConfig) -> Iterator[tuple[Client, RunKeys, int]]:
    """A real learner on a server of its own: (client, keys, the learner's process id)."""
    with tempfile.TemporaryDirectory(prefix="dppo-") as place:
        broker = embedded(Path(place))
        RunFiles(Path(place)).config.write_text(tomli_w.dumps(to_toml(config)))
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(broker.command, **quiet)
        client, keys = connect(broker.url, "bench"), RunKeys("bench")
        learner = None
        try:
            _wait(lambda: (Path(place) / "redis.sock").exists())
            arguments = ["--run", keys.run, "--run-dir", place, "--redis", broker.url]
            learner = subprocess.Popen([sys.executable, "-m", "learner", *arguments], **quiet)
            _wait(lambda: RunStore(client, keys).status() != {})
            yield client, keys, learner.pid
        finally:
            for process in filter(None, (learner, server)):
                process.terminate()
                process.wait()
            client.close()


def _wait(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the learner does not get there")
        time.sleep(0.02)


def resident_bytes(pid: int) -> int:
    """Memory of a process that is really there."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def flood(count: int = COUNT) -> tuple[int, int, dict[str, int]]:
    """Push `count` broken payloads to a real learner: (memory before, most memory, its ledger)."""
    config = configuration(rollout_steps=64)
    description = describe(config)
    payloads = list(hostile(make_rollout(description.spec)).values())
    with learner_of(config) as (client, keys, pid):
        before = most = resident_bytes(pid)
        epoch, version = cast(list[bytes], client.hmget(keys.weights, ["epoch", "version"]))
        header: dict[Any, Any] = {
            "actor": 0, "boot": secrets.token_hex(8), "epoch": epoch, "version": version, "update": 0,
            "steps": 512, "spec": description.digest,
        }  # fmt: skip
        for seq in range(1, count + 1):
            payload = payloads[seq % len(payloads)]
            crc = checksum(payload)
            client.xadd(keys.rollouts, {**header, "seq": seq, "crc": crc, "payload": payload})
            if seq % 100 == 0:
                _wait(lambda: int(client.xlen(keys.rollouts)) < 300)
                most = max(most, resident_bytes(pid))
        _wait(lambda: int(client.xlen(keys.rollouts)) == 0)
        return before, max(most, resident_bytes(pid)), RunStore(client, keys).ledger()


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    BenchmarkParser(prog="dppo-redis bench hostile", description=__doc__).parse_args(argv)
    compare()
    before, most, ledger = flood()
    reasons = ", ".join(f"{n} {name}" for name, n in sorted(ledger.items()) if name.startswith("refused:"))
    print(f"\n{COUNT} hostile payloads: {ledger.get('refused', 0)} refused ({reasons})")
    print(f"memory of the learner: {before / 2**20:.1f} MB before, {most / 2**20:.1f} MB at most")
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
