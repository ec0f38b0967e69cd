"""The processes that hold the actors of one point, and the probe that looks at the run from outside.

All have sessions of their own, so that Ctrl-C in a terminal reaches the benchmark alone, which ends them.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict

from dppo_redis.protocol.ledger import Ledger
from dppo_redis.store.client import TransientError, connect, translated
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import read_counters
from ops.bench.runs import REPOSITORY
from ops.bench.scale.actors import Order, Report
from ops.bench.scale.intake import IntakeLearner
from ops.bench.scale.measured import Wish

_END_S = 30.0
STATUSES = 5


class Processes:
    """The processes of actors of one point."""

    def __init__(self, url: str, run: str, wish: Wish) -> None:
        self._url, self._run, self._wish = url, run, wish
        self._running: list[tuple[subprocess.Popen[str], int]] = []
        self.killed: list[int] = []  # slots

    def start(self) -> None:
        """Start all actors at once, with the slots that were planned for them."""
        for number in range(self._wish.processes):
            slots = range(number, self._wish.actors, self._wish.processes)
            self._start([slot if slot < self._wish.planned else None for slot in slots])

    def _start(self, slots: Sequence[int | None]) -> None:
        churn_per_s = self._wish.churn * len(slots) / 60
        order = Order(self._url, self._run, tuple(slots), churn_per_s, len(self._running), os.getpid())
        command = [sys.executable, "-m", "ops.bench.scale.actors", json.dumps(asdict(order))]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._running.append((process, len(slots)))

    def kill_one(self) -> None:
        """Kill the oldest, as the loss of a host would, and have as many actors join from outside."""
        process, count = self._running.pop(0)
        process.kill()
        process.communicate()
        self.killed += range(0, self._wish.actors, self._wish.processes)
        self._start((None,) * count)

    @property
    def have_ended(self) -> bool:
        """Whether all of them have ended."""
        return all(process.poll() is not None for process, _ in self._running)

    def reports(self) -> Iterator[Report]:
        """What they have done, once the run is over."""
        for process, count in self._running:
            out, _ = process.communicate(timeout=_END_S)
            if process.returncode:
                yield Report(failures=[f"a process of {count} actors ended with {process.returncode}"])
            else:
                yield Report(**json.loads(out.splitlines()[-1]))

    def close(self) -> None:
        """Leave none behind."""
        for process, _ in self._running:
            process.kill()
            process.communicate()


class Probe:
    """Looks at the run from outside, in two threads: counters each half second, `status` a few times."""

    def __init__(self, url: str, run: str, seconds: float, learner: IntakeLearner) -> None:
        self._client = connect(url, "bench-probe")
        self._command = [sys.executable, "-m", "ops", "status", run, "--redis", url]
        self._keys = RunKeys(run)
        self._seconds = seconds
        self._learner = learner
        self._closing = threading.Event()
        self._status: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        self.delivered: list[tuple[float, float]] = []  # (monotonic, steps)
        self.status_s: list[tuple[float, float]] = []  # of the command: wall-clock and computing time
        self.server_mb = 0.0  # most memory
        self.connections = 0
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._look_again, self._time_statuses)
        ]

    def start(self) -> None:
        """Begin to look."""
        self._began = time.monotonic()
        self._look()
        for thread in self._threads:
            thread.start()

    def _look_again(self) -> None:
        while not self._closing.wait(min(0.5, self._seconds / 20)):
            with suppress(TransientError), translated():
                self._look()

    def _time_statuses(self) -> None:
        for number in range(STATUSES):
            due = self._began + (0.5 + number) * self._seconds / STATUSES
            if self._closing.wait(max(0.0, due - time.monotonic())):
                return
            self._time_status()

    def _look(self) -> None:
        counters = read_counters(self._client, self._keys)
        steps = Ledger(counters.ledger).settled_steps + counters.backlog * self._learner.rollout_steps
        self.delivered.append((time.monotonic(), steps))
        self.server_mb = max(self.server_mb, self._client.info("memory")["used_memory"] / 2**20)
        self.connections = max(self.connections, int(self._client.info("clients")["connected_clients"]))

    def _time_status(self) -> None:
        began = time.monotonic()
        null = subprocess.DEVNULL
        self._status = subprocess.Popen(
            self._command, cwd=REPOSITORY, stdout=null, stderr=null, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(self._status.pid, 0)
        except ChildProcessError:  # `close` killed it, and has seen its end
            return
        self._status.returncode = os.waitstatus_to_exitcode(status)
        self.status_s.append((time.monotonic() - began, usage.ru_utime + usage.ru_stime))
        if self._status.returncode and not self._closing.is_set():
            self.failures.append(f"`status` ended with {self._status.returncode}")

    def close(self) -> None:
        """Stop looking."""
        self._closing.set()
        if self._status is not None and self._status.returncode is None:
            self._status.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._client.close()
