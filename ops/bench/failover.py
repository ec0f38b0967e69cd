"""`dppo-redis bench failover`: how soon training resumes when the primary goes, and what it costs.

A fleet trains through three sentinels while its primary is failed over by command, killed and frozen,
in turn. The clock runs from the fault until a server that leads now holds two more updates.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import redis

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_status import read_status
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import REPOSITORY, summary_of, table
from ops.bench.sentinel_group import SentinelGroup, wait_for
from ops.fleet.broker import find_server
from ops.screens.curve import read_metrics

RUN = "failover"
KEYS = RunKeys(RUN)
FAULTS = ("SENTINEL FAILOVER", "kill -9", "SIGSTOP")
_DEADLINE_S = 60.0
_TRAIN = (
    *("train", "ops.bench.slow_environment:SlowCartPole-v1", "--actors", "2", "--run", RUN, "--json"),
    *("--rollout-steps", "8", "--ppo.batch-steps", "128", "--ppo.minibatch-size", "64"),
    *("--total-steps", "100000000", "--overwrite"),
)


@dataclass(frozen=True)
class Seen:
    """What a server's weights and ledger say."""

    update: int
    epoch: int
    version: int
    sha256: str


@dataclass(frozen=True)
class Failover:
    """One fault and what came of it."""

    fault: str
    elected_s: float  # until the sentinels named another primary
    resumed_s: float  # until two more updates were published there
    booked: dict[str, int]  # what the ledger gained, by outcome and reason
    imbalance: int  # at the end
    version_before: int
    version_after: int


def look(group: SentinelGroup, port: int) -> Seen:
    """The weights that a server holds."""
    fields = ["update", "epoch", "version", "sha256"]
    found = cast(list[bytes | None], group.client(port).hmget(KEYS.weights, fields))
    update, epoch, version, sha256 = [(value or b"0").decode() for value in found]
    return Seen(int(update), int(epoch), int(version), sha256)


def ledger(group: SentinelGroup) -> dict[str, int]:
    """Rollouts that were not trained on, by outcome and reason."""
    stored = cast(dict[bytes, bytes], group.client(group.primary()).hgetall(KEYS.ledger))
    dropped = {name.decode(): int(count) for name, count in stored.items() if name != b"entries_before"}
    return {name: n for name, n in dropped.items() if "trained" not in name and "steps" not in name}


class Watcher:
    """Looks at the weights of whichever server leads; each (epoch, version) must mean one blob."""

    def __init__(self, group: SentinelGroup) -> None:
        self._group = group
        self._blobs: dict[tuple[int, int], str] = {}

    def reaches(self, update: int, other_than: int | None = None) -> bool:
        """Whether the primary, where it is another one, holds this update."""
        try:
            port = self._group.primary()
            seen = look(self._group, port) if port != other_than else None
        except (redis.RedisError, TimeoutError):
            return False
        if seen is None:
            return False
        if self._blobs.setdefault((seen.epoch, seen.version), seen.sha256) != seen.sha256:
            raise SystemExit(f"version {seen.version} of epoch {seen.epoch} was published twice")
        return seen.update >= update


def fail(group: SentinelGroup, watcher: Watcher, fault: str) -> Failover:
    """Do it once, wait until training goes on, and make the group whole again."""
    old = group.primary()
    before, before_books = look(group, old), ledger(group)
    began = time.monotonic()
    {"kill -9": group.kill, "SIGSTOP": group.freeze}.get(fault, lambda _: group.fail_over())(old)
    wait_for(lambda: group.primary() != old, _DEADLINE_S, "another server leads")
    elected_s = time.monotonic() - began
    wait_for(lambda: watcher.reaches(before.update + 2, old), _DEADLINE_S, "training goes on")
    resumed_s = time.monotonic() - began
    mend(group, old, fault)
    after = look(group, group.primary())
    gained = {name: n - before_books.get(name, 0) for name, n in ledger(group).items()}
    return Failover(
        fault=fault,
        elected_s=elected_s,
        resumed_s=resumed_s,
        booked={name: n for name, n in gained.items() if n},
        imbalance=read_status(group.client(group.primary()), KEYS).keeper.imbalance,
        version_before=before.version,
        version_after=after.version,
    )


def mend(group: SentinelGroup, old: int, fault: str) -> None:
    """Let the old primary come back, as somebody who does not know that it leads no longer."""
    if fault == "kill -9":
        group.start(old)
    elif fault == "SIGSTOP":
        group.thaw(old)
    group.wait_until_whole()


def versions_of(run_dir: Path) -> list[int]:
    """The version after each update, as the learner recorded it."""
    return [record.version for record in read_metrics(run_dir)]


def measure(group: SentinelGroup, faults: Sequence[str], run_dir: Path) -> tuple[list[Failover], RunSummary]:
    """Train through these faults; what each one did, and the run's summary."""
    command = [sys.executable, "-m", "ops", *_TRAIN, "--redis", group.url, "--run-dir", str(run_dir)]
    train = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        watcher = Watcher(group)
        wait_for(lambda: watcher.reaches(5), _DEADLINE_S, "training has begun")
        found = [fail(group, watcher, fault) for fault in faults]
    finally:
        train.send_signal(signal.SIGTERM)
        out, _ = train.communicate()
    return found, summary_of(json.loads(out.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = BenchmarkParser(prog="dppo-redis bench failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args(argv).rounds
    with (
        tempfile.TemporaryDirectory(prefix="dppo-bench-") as place,
        SentinelGroup(find_server()) as group,
    ):
        faults = [FAULTS[turn % len(FAULTS)] for turn in range(rounds)]
        found, summary = measure(group, faults, Path(place) / "run")
        versions = versions_of(Path(place) / "run")
    rows = [
        [
            number,
            f.fault,
            f"{f.elected_s:.1f} s",
            f"{f.resumed_s:.1f} s",
            ", ".join(
                f"{n} {name}" for name, n in sorted(f.booked.items()) if ":" in name or name == "duplicate"
            )
            or "nothing",
            f.imbalance,
            f"{f.version_before} -> {f.version_after}",
        ]
        for number, f in enumerate(found, 1)
    ]
    header = ["", "fault", "elected after", "training resumes after", "booked", "imbalance", "version"]
    print(table(header, rows))
    print(f"\n{sum(f.resumed_s <= 15 for f in found)} of {rounds} within 15 s; {len(versions)} updates")
    print(f"versions rise: {all(a < b for a, b in pairwise(versions))}")
    print(f"ledger: {summary.ledger and to_json(summary.ledger)}")
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
