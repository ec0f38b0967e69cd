"""Real commands, real servers, and waiting for conditions. All end-to-end tests use this module.

A command is marked by a variable in its environment and by its own temporary directory, so that
everything it started is found again, also what changed its parent or its title.
"""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import psutil
import redis

from dppo_redis.protocol.ledger import Outcome
from dppo_redis.store.keys import RunKeys
from ops.fleet.broker import find_server
from tests.conftest import RedisServer, end_with_tests, wait_until
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
_MARK = "DPPO_TEST_MARK"

# Five milliseconds a step, an update every tenth of a second, hardly any CPU time.
SLOW = (
    *("tests.envs:Slow-v0", "--env-kwargs", "ms", "5", "--vectorization", "sync"),
    *("--actors", "2", "--envs-per-actor", "2", "--rollout-steps", "8", "--network.hidden", "8"),
    *("--ppo.batch-steps", "32", "--ppo.minibatch-size", "16", "--checkpoint.interval-s", "0.5"),
)

OUTCOMES = tuple(outcome.value for outcome in Outcome)


class Command:
    """A `dppo-redis` command (or a service by hand) in a process of its own, and all it starts."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        program: Sequence[str] = ("-m", "ops"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.place = cwd
        self.home = Path(tempfile.mkdtemp(prefix="e2e-"))  # short: sockets live below it
        self.private = self.home / "tmp"
        self.private.mkdir()
        self._mark = secrets.token_hex(8)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DPPO_")}
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.private), _MARK: self._mark}
        with (self.home / "out").open("wb") as out, (self.home / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=cwd,
                env={**inherited, **own, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=end_with_tests,
            )
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes that the test started, and remove its files."""
        self.process.kill()
        self.process.wait()
        while left := self._marked():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    # Its output

    @property
    def out(self) -> str:
        return (self.home / "out").read_text()

    @property
    def err(self) -> str:
        return (self.home / "err").read_text()

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.strip()]

    def summary(self) -> dict[str, Any]:
        """The object that --json prints as the last line."""
        assert self.out.endswith("}\n"), self.err
        return cast(dict[str, Any], json.loads(self.out.splitlines()[-1]))

    def wait_for_output(self, text: str, deadline_s: float = 20.0) -> None:
        """Wait until the command has printed `text`."""

        def found() -> bool:
            assert self.running or text in self.out + self.err, f"it ended: {self.out}{self.err}"
            return text in self.out + self.err

        wait_until(found, deadline_s, f"{text!r} in {self.err}")

    def how_to_join(self) -> tuple[str, str]:
        """(URL, run name) from the line that the command prints for another actor."""
        self.wait_for_output("another actor:")
        line = next(line for line in (self.err + self.out).splitlines() if "another actor:" in line)
        words = shlex.split(line)
        return words[words.index("--redis") + 1], words[words.index("--run") + 1]

    # Its processes

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, deadline_s: float) -> int:
        """Wait for the command's end; returns its exit status."""
        try:
            return self.process.wait(PATIENCE * deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {PATIENCE * deadline_s:.0f} s: {self.err}") from None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, deadline_s: float = 20.0) -> int:
        """End the command with SIGTERM."""
        self.send(signal.SIGTERM)
        return self.wait(deadline_s)

    def _marked(self) -> list[psutil.Process]:
        """All living processes that this command started, without the command itself."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid == self.process.pid or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                # redis-server writes its title over its environment, but the title holds the socket.
                by_title = str(self.private) in " ".join(process.cmdline())
                if by_title or process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found

    def survivors(self) -> list[str]:
        """The command lines of its living processes, and its private directory."""
        lines = []
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                lines.append(f"{process.pid} {shlex.join(process.cmdline())}")
        return lines + [str(path) for path in self.private.glob("dppo-*")]

    def services(self) -> list[list[str]]:
        """As `survivors`, without the process below the guard, which is the command again."""
        return [words for words in self.command_lines() if words != self.process.args]

    def command_lines(self) -> list[list[str]]:
        """The command lines of all processes that the command started, without itself."""
        lines = []
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                lines.append(process.cmdline())
        return lines

    def pid_of(self, *words: str) -> int | None:
        """The process with these consecutive words in its command line; None without one."""
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                if f" {' '.join(words)} " in f" {' '.join(process.cmdline())} ":
                    return int(process.pid)
        return None

    def service(self, *words: str) -> int:
        """As `pid_of`, but waits for the process."""
        wait_until(lambda: self.pid_of(*words) is not None, 15, f"there is a process {words}")
        return self.pid_of(*words) or 0


ACTOR = ("-m", "workers")
LEARNER = ("-m", "learner")
EVALUATOR = ("-m", "workers.evaluate")
SUPERVISORD = ("-m", "ops.fleet.supervised")


def assert_nothing_left(command: Command, deadline_s: float = 0.0) -> None:
    """Check that no process and no temporary file of this command is left."""
    deadline = time.monotonic() + PATIENCE * deadline_s
    while (left := command.survivors()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], left


class Server:
    """A Redis that no run has started."""

    def __init__(self) -> None:
        self._server = RedisServer(find_server())
        self.url = self._server.url
        self.client = redis.Redis.from_url(
            self.url, decode_responses=True, encoding_errors="replace", protocol=2
        )

    def start(self) -> Self:
        self._server.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.close()

    def protect(self, password: str) -> str:
        """Open a port of this machine, ask for a password everywhere, and return the port's URL."""
        port = free_port()
        self.client.config_set("port", port)
        self.client.config_set("requirepass", password)
        return f"redis://127.0.0.1:{port}/0"

    def run(self, name: str) -> "Run":
        return Run(self.client, name)


class Run:
    """The keys of one run, as redis-cli shows them."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.keys = RunKeys(name)

    def hash(self, key: str) -> dict[str, str]:
        return cast(dict[str, str], self.client.hgetall(key))

    def status(self, field: str) -> int:
        """A number in the status hash; 0 if it is missing."""
        return int(self.client.hget(self.keys.status, field) or 0)

    def boot(self, slot: int) -> int:
        return int(self.client.hget(self.keys.boots, str(slot)) or 0)

    def actor(self, slot: int) -> dict[str, str]:
        return self.hash(self.keys.actor(slot))

    def all_keys(self) -> set[str]:
        return set(self.client.scan_iter(match=self.keys.pattern))

    def weights(self, field: str) -> int:
        """A number of the current publication; 0 before the first."""
        return int(self.client.hget(self.keys.weights, field) or 0)

    def reaches(self, update: int, deadline_s: float = 30.0) -> None:
        """Wait until weights are published after this many updates."""
        wait_until(lambda: self.weights("update") >= update, deadline_s, f"update {update} of {self.name}")

    def goes_on(self, deadline_s: float = 30.0) -> None:
        """Wait until the learner has made more updates."""
        self.reaches(self.weights("update") + 3, deadline_s)


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def assert_books_balance(ledger: Mapping[str, int]) -> None:
    """Check that each added rollout has one outcome, or waits in the backlog."""
    assert ledger["entries_added"] == sum(ledger[name] for name in OUTCOMES) + ledger["backlog"]
    assert ledger["imbalance"] == 0


def tree(directory: Path) -> dict[str, bytes]:
    """All files below a directory with their content, to detect changes."""
    found = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # a run that lives renames files
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found
