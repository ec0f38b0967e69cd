"""A fleet to be attacked: `dppo-redis train` behind a proxy, on a server and a disk of its own.

The injector has a way to the server that no fault touches, and writes what it does into the history.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import redis

from dppo_redis.protocol.ledger import Outcome
from dppo_redis.service.event_log import EventLog
from dppo_redis.store.client import connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import PAUSE, RunStore
from ops.fleet.broker import find_server
from tests.chaos.proxy import Proxy
from tests.chaos.story import Event, imbalance, parse
from tests.conftest import RedisServer
from tests.e2e.support import LEARNER, Command

NAME = "chaos"
_POLL_S = 0.05
PATIENCE_S = 90.0  # a whole fleet starts anew, on a busy machine
_DISK = "64m"


class ChaosError(Exception):
    """The fleet did not reach the state for which the injector waited."""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition` holds; raise ChaosError when it has not for PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise ChaosError(f"waited {PATIENCE_S:g} s in vain until {what}")
        time.sleep(_POLL_S)


class Fleet:
    """One training run, with all actions that a fault needs."""

    def __init__(self, settings: Sequence[str], actors: int) -> None:
        self._settings = settings
        self.actors = actors
        self.place = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.histories = self.place / "history"
        self.run_dir = self.place / "disk" / "run"
        self.disk_is_small = _mount(self.run_dir.parent)
        self.server = RedisServer(find_server())
        self.server.start()
        self.proxy = Proxy(self.server.url.removeprefix("unix://"))
        self.keys = RunKeys(NAME)
        self.client = connect(self.server.url, "chaos")
        self.store = RunStore(self.client, self.keys)
        self.event_log = EventLog(self.histories / "injector.jsonl", "injector")
        self.command = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.command.__exit__()
        self.proxy.close()
        self.client.connection_pool.disconnect()
        self.server.close()
        if self.disk_is_small:
            subprocess.run(["umount", "--lazy", str(self.run_dir.parent)], check=False)
        shutil.rmtree(self.place, ignore_errors=True)

    def _start(self, *more: str) -> Command:
        places = ("--run", NAME, "--run-dir", str(self.run_dir), "--event-log", str(self.histories))
        return Command("train", *places, "--redis", self.proxy.url, *self._settings, *more, cwd=self.place)

    def wait_until_ended(self) -> None:
        """Wait until the command and all its processes have ended."""
        wait_for(lambda: not self.command.running, "the command has ended")
        wait_for(lambda: not self.command.command_lines(), "its services have ended")
        self.command.__exit__()

    def resume(self) -> None:
        """Resume the run, as an operator would."""
        self.command = self._start("--resume")

    # Processes

    def actor(self, slot: int) -> int:
        return self.pid("--slot", str(slot))

    def learner(self) -> int:
        return self.pid(*LEARNER)

    def pid(self, *words: str) -> int:
        """The process with these words in its command line, waiting for it."""
        wait_for(lambda: self.command.pid_of(*words) is not None, f"there is a process {words}")
        return self.command.pid_of(*words) or 0

    def second_learner(self) -> Command:
        """Another learner of the same run, started by hand."""
        event_log = self.histories / "second_learner.jsonl"
        places = ("--run", NAME, "--run-dir", str(self.run_dir), "--event-log", str(event_log))
        return Command("learner", *places, "--redis", self.proxy.url, cwd=self.place)

    # Keys

    def number(self, key: str, field: str) -> int:
        """A number in a hash; 0 if it is missing, or if the server does not answer."""
        try:
            return int(float(cast(bytes, self.client.hget(key, field)) or 0))
        except (redis.RedisError, ValueError):
            return 0

    @property
    def update(self) -> int:
        return self.number(self.keys.weights, "update")

    @property
    def trained_steps(self) -> int:
        return self.number(self.keys.weights, "steps")

    def status(self) -> dict[str, str]:
        """The keeper's last report; empty while there is none."""
        try:
            return self.store.status()
        except redis.RedisError:
            return {}

    def reported_pushes(self) -> dict[int, tuple[int, int]]:
        """(boot, pushes) that each planned actor last reported."""
        keys = {slot: self.keys.actor(slot) for slot in range(self.actors)}
        return {slot: (self.number(key, "boot"), self.number(key, "pushes")) for slot, key in keys.items()}

    def first_entry(self) -> tuple[str, dict[bytes, bytes]]:
        """The first entry of the stream, unchanged."""
        found: list[Any] = []

        def has_entry() -> bool:
            with contextlib.suppress(redis.RedisError):
                found.extend(cast(Any, self.client.xrange(self.keys.rollouts, count=1)))
            return bool(found)

        wait_for(has_entry, "there is an entry in the stream")
        return found[0][0].decode(), found[0][1]

    def note_removal(self, entries: int | None, *, resets: bool, since: float | None = None) -> None:
        """Say in the history how many entries a fault took from the stream; None: all there were.

        `since` is when nobody could count any more, if that was before now.
        """
        self.event_log.write("removed", entries=entries, resets=resets, since=since or time.time())

    def note_balance(self) -> None:
        """Record the ledger's imbalance, which must be 0 at every moment, not only in the keeper's audits."""
        self.event_log.write("looked", imbalance=imbalance(self.store.counters()))

    # The disk

    def fill_disk(self) -> Path:
        """Fill the disk completely; returns the file that takes the space."""
        filler = self.run_dir.parent / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))
        return filler

    # The end

    def bring_to_rest(self) -> None:
        """Pause actors and learner, wait until the counters stay the same, and record the ledger."""
        self.store.set_state(PAUSE)
        seen: list[tuple[int, int]] = []

        def is_still() -> bool:
            counters = self.store.counters()
            seen.append((counters.entries_added, counters.backlog))
            recent = seen[-int(3 / _POLL_S) :]
            return len(recent) == int(3 / _POLL_S) and len(set(recent)) == 1

        wait_for(is_still, "the fleet has come to rest")
        status = self.store.status()
        counters = self.store.counters()
        entries = [
            (entry_id.decode(), fields.get(b"boot", b"")[:16], fields.get(b"seq", b"")[:20])
            for entry_id, fields in cast(list[Any], self.client.xrange(self.keys.rollouts))
        ]
        self.event_log.write(
            "final",
            entries_added=counters.ledger.get("entries_before", 0) + counters.entries_added,
            backlog=counters.backlog,
            ledger={name: counters.ledger.get(name, 0) for name in (*Outcome, "lost:valve")},
            imbalance=int(status["imbalance"]),
            entries=entries,
        )

    def events(self) -> Iterator[Event]:
        """The events of all services and of the injector."""
        for file in sorted(self.histories.glob("*.jsonl")):
            with file.open(encoding="utf-8") as lines:
                yield from parse(lines)

    def copy_logs(self, directory: Path) -> None:
        """Copy histories and logs into `directory`, for a later inspection."""
        shutil.copytree(self.histories, directory / "history")
        shutil.copytree(self.run_dir / "logs", directory / "logs")
        (directory / "train.err").write_text(self.command.err)


def _mount(place: Path) -> bool:
    """Make a small disk of its own there; False where that is not allowed."""
    place.mkdir()
    if os.geteuid() != 0:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(place)]
    return subprocess.run(mount, check=False, capture_output=True).returncode == 0


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has ended is ignored."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the time of the block."""
    signal_process(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_process(pid, signal.SIGCONT)
